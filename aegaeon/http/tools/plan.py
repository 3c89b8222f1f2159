"""What a request's tools mean for its prompt, its form and its answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aegaeon.constraint import Constraint
from aegaeon.grammars import lark_schema
from aegaeon.http.chat import template_of
from aegaeon.http.errors import ApiError, unsupported
from aegaeon.http.formats import check_form
from aegaeon.http.messages import Tool
from aegaeon.http.models import ServedModel
from aegaeon.http.schemas import ChatBody
from aegaeon.http.tools.argument_types import ArgumentTypes
from aegaeon.http.tools.call_scanner import CallScanner
from aegaeon.http.tools.choice import Choice, read_choice
from aegaeon.http.tools.families import Family, family_of, named_family, shown_ids
from aegaeon.http.tools.grammars import calls_grammar, free_grammar
from aegaeon.http.tools.parser import CallParser
from aegaeon.http.tools.tagged_scanner import FUNCTION, TaggedScanner


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
    choice = read_choice(body)
    if choice is None:
        return ChatPlan(constraint=constraint)
    family = _family(model, choice.shown)
    rules = _rules(model, family, choice, asked)
    if rules:
        constraint = Constraint.grammar(rules)
        check_form("tools", constraint)
    return ChatPlan(
        tools=[tool.model_dump(exclude_none=True) for tool in choice.shown],
        constraint=constraint,
        family=family,
        shown=shown_ids(family, model.vocabulary),
        single=choice.single,
        required=choice.required,
        types={tool.function.name: ArgumentTypes(tool) for tool in choice.shown},
    )


def _rules(
    model: ServedModel, family: Family, choice: Choice, asked: tuple[str, Constraint] | None
) -> str:
    """The grammar of an answer; empty where calls are the model's own."""
    vocabulary, single = model.vocabulary, choice.single
    start = ""
    if choice.required:
        if asked is not None:
            problem = "has no effect where a call is required"
            raise ApiError(f"{asked[0]}: {problem}", code="invalid_value", param=asked[0])
        start = "start: calls\n"
    elif asked is not None and asked[0] == "response_format":
        start = f"start: calls | answer\nanswer: {lark_schema(json.loads(asked[1].text))}\n"
    if start:
        return start + calls_grammar(family, vocabulary, choice.callable, single=single)
    if not choice.held:
        return ""
    if asked is not None:
        problem = "cannot be held together with strict or allowed tools; use response_format"
        raise ApiError(f"{asked[0]}: {problem}", code="invalid_value", param=asked[0])
    ends = model.eos_token_ids
    return free_grammar(family, vocabulary, choice.shown, choice.callable, ends, single=single)


def _family(model: ServedModel, tools: Sequence[Tool]) -> Family:
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
