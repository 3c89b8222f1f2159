"""Names for the ways in which models write calls of tools: those that vLLM has for them."""

from __future__ import annotations

import difflib
from typing import Literal, get_args

from aegaeon.errors import InvalidRequestError

ToolParserName = Literal[
    "hermes", "llama3_json", "llama4_json", "mistral", "qwen3_coder", "qwen3_xml"
]
TOOL_PARSERS: tuple[str, ...] = get_args(ToolParserName)
_MAX_SHOWN = 80


def check_tool_parser(field: str, name: str) -> None:
    """Raise InvalidRequestError, which names the nearest, unless it is one of them; no name, which
    leaves it to the chat template, is empty."""
    if name in ("", *TOOL_PARSERS):
        return
    shown = name[:_MAX_SHOWN]
    close = difflib.get_close_matches(shown, TOOL_PARSERS, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise InvalidRequestError(
        f"{field} = {shown!r}: {hint}it must be one of {', '.join(TOOL_PARSERS)}, or be left out: "
        "then the chat template tells",
        metadata={"field": field, "value": shown},
    )
