"""Which tools an answer may call, and whether it has to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aegaeon.http.errors import ApiError
from aegaeon.http.messages import AllowedTools, NamedTool, Tool
from aegaeon.http.schemas import ChatBody


@dataclass(frozen=True)
class Choice:
    """Of one request with tools."""

    #: All that the model is shown.
    shown: Sequence[Tool]
    #: Those that it may call.
    callable: Sequence[Tool]
    #: The answer is calls and nothing else.
    required: bool
    #: At most one call.
    single: bool

    @property
    def held(self) -> bool:
        """Calls cannot be left to the model, even where it may do without them."""
        some = len(self.callable) < len(self.shown)
        return some or any(tool.function.strict for tool in self.callable)


def read_choice(body: ChatBody) -> Choice | None:
    """None where no tool may be called. Raises ApiError."""
    tools, choice = body.tools or [], body.tool_choice
    if not tools and choice not in (None, "none", "auto"):
        raise ApiError("tool_choice: there are no tools", code="invalid_value", param="tools")
    if not tools or choice == "none":
        return None
    single = body.parallel_tool_calls is False
    if isinstance(choice, NamedTool):
        return Choice(tools, _found(tools, [choice], "tool_choice"), True, True)
    if isinstance(choice, AllowedTools):
        allowed = choice.allowed_tools
        found = _found(tools, allowed.tools, "tool_choice.allowed_tools")
        return Choice(tools, found, allowed.mode == "required", single)
    return Choice(tools, tools, choice == "required", single)


def _found(tools: Sequence[Tool], named: Sequence[NamedTool], field: str) -> list[Tool]:
    """The tools of these names, in the order in which they are shown."""
    known = {tool.function.name: tool for tool in tools}
    wanted = {one.function.name for one in named}
    for name in sorted(wanted - known.keys()):
        raise ApiError(f"{field}: there is no tool {name!r}", code="invalid_value", param=field)
    return [tool for name, tool in known.items() if name in wanted]
