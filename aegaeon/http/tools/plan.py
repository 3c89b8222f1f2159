"""What a request's tools mean for its prompt, its form and its answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aegaeon.constraint import Constraint
from aegaeon.grammars import lark_schema
from aegaeon.http.chat import template_of
from aegaeon.http.errors import ApiError, unsupported
from aegaeon.http.formats import check_form
from aegaeon.http.messages import NamedTool, Tool
from aegaeon.http.models import ServedModel
from aegaeon.http.schemas import ChatBody
from aegaeon.http.tools.argument_types import ArgumentTypes
from aegaeon.http.tools.call_scanner import CallScanner
from aegaeon.http.tools.families import (
    Family,
    calls_grammar,
    family_of,
    named_family,
    shown_ids,
)
from aegaeon.http.tools.parser import CallParser
from aegaeon.http.tools.tagged_scanner import FUNCTION, TaggedScanner

#: First rule of a grammar of calls and nothing else.
_CALLS = "start: calls\n"


@dataclass(frozen=True)
class ChatPlan:
    """How a chat is generated and read."""

    #: As templates take them.
    tools: list[dict[str, Any]] = field(default_factory=list)
    constraint: Constraint | None = None
    family: Family | None = None
    #: Special tokens that stay in the text.
    shown: frozenset[int] = frozenset()
    single: bool = False
    #: The answer is calls and nothing else.
    required: bool = False
    #: Of the arguments of each tool.
    types: Mapping[str, ArgumentTypes] = field(default_factory=dict)

    def parser(self) -> CallParser | None:
        """For one answer; None where no calls are expected."""
        if self.family is None:
            return None
        tagged = self.family.tagged
        return CallParser(
            self.family.marks,
            single=self.single,
            calls_only=self.required,
            # Qwen3-Coder now and then leaves out what comes before a call.
            bare=[f"{FUNCTION}{name}>" for name in self.types] if tagged else (),
            scanner=partial(TaggedScanner, self.types) if tagged else CallScanner,
        )


def plan_chat(model: ServedModel, body: ChatBody) -> ChatPlan:
    """Read a body's tools and format. Raises ApiError. To be called in a thread.

    A ``response_format`` is that of an answer without calls; other forms are those of the text as
    the model writes it, calls included.
    """
    asked = body.form()
    if asked is not None:
        check_form(*asked)
    constraint = asked[1] if asked is not None else None
    tools = body.tools or []
    choice = body.tool_choice
    if not tools or choice == "none":
        if not tools and choice not in (None, "none", "auto"):
            raise ApiError("tool_choice: there are no tools", code="invalid_value", param="tools")
        return ChatPlan(constraint=constraint)
    family = _family(model, tools)
    single = body.parallel_tool_calls is False or isinstance(choice, NamedTool)
    start = _start(choice, asked)
    if start:
        rules = calls_grammar(family, model.vocabulary, _called(tools, choice), single=single)
        constraint = Constraint.grammar(start + rules)
        check_form("tools", constraint)
    return ChatPlan(
        tools=[tool.model_dump(exclude_none=True) for tool in tools],
        constraint=constraint,
        family=family,
        shown=shown_ids(family, model.vocabulary),
        single=single,
        required=start == _CALLS,
        types={tool.function.name: ArgumentTypes(tool) for tool in tools},
    )


def _start(choice: object, asked: tuple[str, Constraint] | None) -> str:
    """First rule of a grammar of calls; empty where there is none to be."""
    if choice not in (None, "auto"):
        if asked is None:
            return _CALLS
        raise ApiError(
            f"{asked[0]}: has no effect where a call is required",
            code="invalid_value",
            param=asked[0],
        )
    if asked is not None and asked[0] == "response_format":
        return f"start: calls | answer\nanswer: {lark_schema(json.loads(asked[1].text))}\n"
    return ""


def _family(model: ServedModel, tools: list[Tool]) -> Family:
    template = template_of(model, tools=True)
    if "tools" not in template:
        raise unsupported("tools", f"the chat template of model {model.name!r} has none")
    named = model.tool_parser
    family = named_family(named, template, model.vocabulary) if named else family_of(template)
    if family is None:
        raise unsupported("tools", f"the form of calls of model {model.name!r} is not known")
    for number, tool in enumerate(tools):
        if tool.function.parameters is not None:
            schema = Constraint.json_schema(tool.function.parameters)
            check_form(f"tools[{number}].function.parameters", schema)
    return family


def _called(tools: list[Tool], choice: object) -> list[Tool]:
    """The tools that may be called."""
    if not isinstance(choice, NamedTool):
        return tools
    named = [tool for tool in tools if tool.function.name == choice.function.name]
    if not named:
        raise ApiError(
            f"tool_choice: there is no tool {choice.function.name!r}",
            code="invalid_value",
            param="tool_choice",
        )
    return named[:1]
