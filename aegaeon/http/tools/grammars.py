"""Grammars of answers: calls and nothing else, or text in which calls keep to their schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence

from aegaeon.grammars import lark_schema
from aegaeon.http.messages import Tool
from aegaeon.http.tools.families import Family, mark_ids
from aegaeon.http.tools.tagged_grammar import free_rules, tagged_rules, text_rules
from aegaeon.http.tools.tagged_scanner import FUNCTION
from aegaeon.http.vocabulary import Vocabulary

#: A text, as an expression of a terminal.
_ANY = "/(?s:.*)/"
#: What the parser passes over ahead of a call, some of which is no white space to the compiler.
_SPACE = r"[\s\x1c-\x1f]*"


def calls_grammar(
    family: Family, vocabulary: Vocabulary, tools: Sequence[Tool], *, single: bool
) -> str:
    """Lark rules whose ``calls`` is one call of one of the tools, or several. Raises ApiError."""
    special = mark_ids(family, vocabulary)
    rules = _call_rules(family, special, tools, held=True)
    return "\n".join([*rules, *_around(family, special, single=single)])


def free_grammar(
    family: Family,
    vocabulary: Vocabulary,
    tools: Sequence[Tool],
    callable_tools: Sequence[Tool],
    end_ids: Collection[int],
    *,
    single: bool,
) -> str:
    """A grammar of any text with calls in it, as far as they are of ``callable_tools``; arguments
    are those of the schemas of strict tools, and any object for others.

    ``tools`` are all that the parser knows. The text between calls may have tokens that are none,
    except ``end_ids``, where they do not make a mark of what stands around them, since many are
    not shown. Raises ApiError.
    """
    special = mark_ids(family, vocabulary)
    rules = _call_rules(family, special, callable_tools, held=False)
    others = sorted(vocabulary.whole - set(special.values()) - set(end_ids))
    if not family.marks.begin:
        rules += _around(family, special, single=single)
        return "\n".join([*_whole_answer(family, special, others), *rules])
    marks = [family.marks.begin]
    if family.tagged:
        marks += [f"{FUNCTION}{tool.function.name}>" for tool in tools]
    more = "other* " if others else ""
    every = "(marked | other)* " if others else "marked* "
    start = f"start: {more}(marked | free)" if single else f"start: {every}free"
    found = "|".join(map(re.escape, marks))
    rules += [start, "free: FREE", f"FREE: {_ANY} & ~/(?s:.*({_slashed(found)}).*)/"]
    if others:
        begun = "|".join(_beginnings(mark) for mark in marks)
        rules.append(f"BREAK: FREE & ~/(?s:.*({_slashed(begun)}))/")
        rules.append(f"other: BREAK {_ids(others)}")
    return "\n".join([*rules, *_marked(family, special, callable_tools, single=single)])


def _call_rules(
    family: Family, special: dict[str, int], tools: Sequence[Tool], *, held: bool
) -> list[str]:
    """Rules whose ``call`` is one of one of the tools; arguments are held to their schemas where
    tools are strict, or if ``held``."""
    rules = text_rules() if family.tagged else []
    for number, tool in enumerate(tools):
        strict = held or bool(tool.function.strict)
        if family.tagged:
            rules += tagged_rules(number, tool) if strict else free_rules(number, tool)
            continue
        name = json.dumps(tool.function.name)
        parameters = tool.function.parameters if strict else None
        rules.append(f"arguments_{number}: {lark_schema(parameters or {'type': 'object'})}")
        if family.marks.split:
            split = _text(family.marks.split, special)
            rules.append(f"call_{number}: {name} {split} arguments_{number}")
        else:
            opening = json.dumps(f'{{"name": {name}, "{family.arguments}": ')
            rules.append(f'call_{number}: {opening} arguments_{number} "}}"')
    one = " | ".join(f"call_{number}" for number in range(len(tools)))
    return [*rules, f"call: {one}"]


def _around(family: Family, special: dict[str, int], *, single: bool) -> list[str]:
    """``calls``, and nothing else."""
    before, after = _text(family.before, special), _text(family.after, special)
    between = _text(family.between, special)
    if family.in_list:
        more = "" if single else f" ({between} call)*"
        return [f"calls: {before} call{more} {after}"]
    more = "" if single else f" ({between} whole)*"
    return [f"calls: whole{more}", f"whole: {before} call {after}"]


def _whole_answer(family: Family, special: dict[str, int], others: Sequence[int]) -> list[str]:
    """Where nothing marks calls, an answer is calls if it begins like one, and else text."""
    prefix = family.marks.prefix
    begins = "|".join(re.escape(mark) for mark in ("{", prefix))
    rules = [
        "start: free | prefix? calls",
        f"prefix: {_text(prefix, special)}",
        "free: FREE",
        f"FREE: {_ANY} & ~/(?s:{_SPACE}({_slashed(begins)}).*)/",
    ]
    if others:
        begun = _slashed(_beginnings(prefix))
        rules[0] = "start: free | BREAK other* | prefix? calls"
        rules += [
            f"BREAK: FREE & ~/{_SPACE}({begun})?/",
            f"other: {_ids(others)} {_ANY}",
        ]
    return rules


def _marked(
    family: Family, special: dict[str, int], tools: Sequence[Tool], *, single: bool
) -> list[str]:
    """``marked``: text up to a mark, and what has to follow it."""
    begin = family.marks.begin
    before = _text(family.before.removeprefix(begin), special)
    more = f" ({_text(family.between, special)} call)*" if family.in_list and not single else ""
    rest = f"{before} call{more} {_text(family.after, special)}"
    if begin in special:
        rules = [f"begun: free <[{special[begin]}]> {rest}"]
    else:
        rules = [f"head[suffix={json.dumps(begin)}]: FREE", f"begun: head {rest}"]
    ways = ["begun"]
    for number, tool in enumerate(tools if family.tagged else ()):
        mark = json.dumps(f"{FUNCTION}{tool.function.name}>")
        rules.append(f"head_{number}[suffix={mark}]: FREE")
        rules.append(f'bare_{number}: head_{number} "\\n" inside_{number}')
        ways.append(f"bare_{number}")
    return [*rules, f"marked: {' | '.join(ways)}"]


def _beginnings(mark: str) -> str:
    """An expression of everything that a mark may begin with, short of all of it."""
    found = ""
    for character in reversed(mark[:-1]):
        found = re.escape(character) + (f"({found})?" if found else "")
    return found


def _ids(tokens: Sequence[int]) -> str:
    """One of some tokens."""
    return f"<[{','.join(map(str, tokens))}]>"


def _slashed(expression: str) -> str:
    """Between slashes."""
    return expression.replace("/", r"\/")


def _text(text: str, special: dict[str, int]) -> str:
    """A literal of a grammar, in which special tokens are ids."""
    for mark, token in special.items():
        first, found, rest = text.partition(mark)
        if found:
            parts = (_text(first, special), f"<[{token}]>", _text(rest, special))
            return " ".join(part for part in parts if part)
    return json.dumps(text) if text else ""
