"""Options of ``aegaeon bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Models = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MODEL]...", help="Models.", show_default="all that are ready"),
]
Rates = Annotated[
    str, typer.Option(help="Requests/s of each model, comma-separated: one run each.")
]
Seconds = Annotated[float, typer.Option(min=0.1, help="Length of the arrivals of a run.")]
InputTokens = Annotated[
    int, typer.Option(min=1, help="Mean prompt length; drawn between half and one and a half.")
]
OutputTokens = Annotated[int, typer.Option(min=1, help="Mean output length, drawn likewise.")]
Workload = Annotated[
    Path | None,
    typer.Option(
        help="CSV file of arrivals and lengths instead. Its models are mapped to MODELs in turn."
    ),
]
Seed = Annotated[int, typer.Option(help="Of arrivals, lengths and prompts.")]
TtftS = Annotated[float, typer.Option(min=1e-4, help="Limit of the first token, seconds.")]
TpotS = Annotated[float, typer.Option(min=1e-4, help="Limit of every further token, seconds.")]
Through = Annotated[
    bool,
    typer.Option(
        "--http/--grpc",
        help="Through a gateway, as the client sees it, or by gRPC, as the scheduler does.",
    ),
]
RequestTimeout = Annotated[
    float, typer.Option("--request-timeout-s", min=0.1, help="A request fails after this time.")
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for tables of all requests, a summary and pictures.")
]
