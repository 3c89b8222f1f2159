"""Options of the subcommands that make text."""

from __future__ import annotations

from typing import Annotated

import typer

Prompt = Annotated[
    str | None,
    typer.Argument(metavar="[PROMPT]", help="Text.", show_default="standard input"),
]
Url = Annotated[
    str | None,
    typer.Option(
        help="HTTP gateway, such as http://127.0.0.1:8000.",
        show_default="that of the instance, else one of its own",
    ),
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Continue the prompt as it is, without the chat template.")
]
System = Annotated[str | None, typer.Option(help="System message ahead of the prompt.")]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=1, help="New tokens at most.", show_default="to the end of the context"),
]
Temperature = Annotated[
    float | None, typer.Option(min=0, max=2, help="0 is greedy.", show_default="1")
]
TopP = Annotated[
    float | None, typer.Option(min=0, max=1, help="Share of probability to draw from.")
]
TopK = Annotated[int | None, typer.Option(min=0, help="So many most probable tokens.")]
MinP = Annotated[float | None, typer.Option(min=0, max=1, help="Share of the highest probability.")]
FrequencyPenalty = Annotated[float | None, typer.Option(min=-2, max=2, help="Per repetition.")]
PresencePenalty = Annotated[float | None, typer.Option(min=-2, max=2, help="Once per token.")]
RepetitionPenalty = Annotated[
    float | None, typer.Option(min=0.01, max=100, help="Divides logits of what was there.")
]
SamplingSeed = Annotated[int | None, typer.Option(help="Makes the answer repeatable.")]
Stop = Annotated[
    list[str] | None, typer.Option(help="Ends the text ahead of this string; may be repeated.")
]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on after its end tokens.")]
Statistics = Annotated[
    bool, typer.Option("--stats", help="Tell tokens and times on standard error.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document at the end, and nothing before.")
]
