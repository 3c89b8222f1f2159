"""Text in which calls keep to the schemas of their tools: whatever a model makes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from aegaeon.constraint import Constraint
from aegaeon.grammars import LIMITS, check_constraint, grammar_of
from aegaeon.http.messages import Tool
from aegaeon.http.tools.argument_types import ArgumentTypes
from aegaeon.http.tools.call_scanner import CallScanner
from aegaeon.http.tools.families import (
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_LIST,
    QWEN_CODER,
    Family,
    shown_ids,
)
from aegaeon.http.tools.grammars import free_grammar
from aegaeon.http.tools.parser import CallParser, parts_of
from aegaeon.http.tools.tagged_scanner import FUNCTION, TaggedScanner
from aegaeon.http.vocabulary import Vocabulary

END, BREAK = "<end>", "<break>"
FAMILIES = {
    "hermes": HERMES,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "mistral-list": MISTRAL_LIST,
    "coder": QWEN_CODER,
}
MARKS = ["<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]"]
#: Of calls, cut in awkward places.
PIECES = [
    *("<tool", "_call>", "</tool_call>", "<", "<tool_call>\n", "[TOOL", "_CALLS]", "[ARGS]", "<|"),
    *("python_tag|>", "; ", ";", "<function=", "held>", "free>", "never>", "</function>", "text"),
    *("<parameter=city>\n", "Paris", "\n</parameter>\n", "<parameter=days>\n", "2", "7", ">\n"),
    *('{"name": "', 'held", "', 'free", "', 'never", "', 'arguments": ', 'parameters": ', "held"),
    *("never", "free", '{"city": ', '"Paris"', '"Rome"', ', "days": ', "}}", "}", "{", " ", "]"),
    *(" [{", ", ", "\x1c", "é"),
]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris"]}, "days": {"enum": [2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def tool(name: str, *, strict: bool) -> Tool:
    function = {"name": name, "parameters": SCHEMA, "strict": strict}
    return Tool.model_validate({"type": "function", "function": function})


HELD, FREE, NEVER = (
    tool("held", strict=True),
    tool("free", strict=False),
    tool("never", strict=True),
)


class Model:
    """A tokenizer whose marks are special tokens, other added ones, or none, and a grammar."""

    def __init__(self, family: Family, marks: str, *, single: bool = False) -> None:
        self.family, self.single = family, single
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made = [spelled.pre_tokenize_str(piece)[0][0] for piece in PIECES]
        names = list(dict.fromkeys([*alphabet, *made]))
        backend = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, []))
        backend.pre_tokenizer = spelled
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([END, BREAK, *(MARKS if marks == "special" else ())])
        if marks == "added":
            backend.add_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END)
        self.vocabulary = Vocabulary(tokenizer)
        self.backend, self.size = backend, backend.get_vocab_size()
        self.end = backend.token_to_id(END)
        self._bytes = spelled
        self.likely = range(len(alphabet), self.size)
        self.shown = shown_ids(family, self.vocabulary)
        self.tools = [HELD, FREE, NEVER]
        rules = free_grammar(
            *(family, self.vocabulary, self.tools, [HELD, FREE], [self.end]), single=single
        )
        constraint = Constraint.grammar(rules)
        check_constraint(constraint)
        tokens = LLTokenizer(backend.to_str(), n_vocab=self.size, eos_token=[self.end])
        self.matcher = LLMatcher(tokens, grammar_of(constraint), log_level=0, limits=LIMITS)
        assert not self.matcher.is_error(), self.matcher.get_error()

    def ids(self, *parts: str) -> list[int]:
        """Names of tokens are these, the rest is spelled out."""
        ids: list[int] = []
        for part in parts:
            token = self.backend.token_to_id(part) if part in (BREAK, *MARKS) else None
            letters = "".join(piece for piece, _ in self._bytes.pre_tokenize_str(part))
            ids += map(self.backend.token_to_id, letters) if token is None else [token]
        return ids

    def text(self, ids: Sequence[int]) -> str:
        """As the gateway sees it."""
        kept = [one for one in ids if one not in self.vocabulary.special or one in self.shown]
        return self.vocabulary.decode_all(kept, False)

    def takes(self, *parts: str) -> bool:
        """Whether an answer may be this."""
        ids = self.ids(*parts)
        matcher = self.matcher.deep_copy()
        return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())

    def calls(self, text: str) -> list[tuple[str, str]]:
        """As the gateway finds them."""
        types = {one.function.name: ArgumentTypes(one) for one in self.tools}
        tagged = self.family.tagged
        parser = CallParser(
            self.family.marks,
            single=self.single,
            bare=[f"{FUNCTION}{name}>" for name in types] if tagged else (),
            scanner=partial(TaggedScanner, types) if tagged else CallScanner,
        )
        found: list[tuple[str, str]] = []
        for part in parts_of(parser, text, ends=True).calls:
            if part.name is not None:
                found.append((part.name, ""))
            name, arguments = found[-1]
            found[-1] = (name, arguments + part.arguments)
        return found


KINDS = ["special", "added", "spelled"]


@pytest.mark.parametrize("marks", KINDS)
@pytest.mark.parametrize("name", FAMILIES)
@given(seed=st.integers(0, 2**32), single=st.booleans())
@settings(max_examples=15)
def test_every_call_in_whatever_is_written_is_held(
    name: str, marks: str, seed: int, single: bool
) -> None:
    model = _model(name, marks, single)
    ids = walk(model, Random(seed))
    if ids is None:
        return
    calls = model.calls(model.text(ids))
    assert len(calls) <= 1 or not single
    for called, arguments in calls:
        assert called in ("held", "free"), model.text(ids)
        read = json.loads(arguments)
        assert read == {"city": "Paris", "days": 2} if called == "held" else isinstance(read, dict)


_MADE: dict[tuple[str, str, bool], Model] = {}


def _model(name: str, marks: str, single: bool = False) -> Model:
    key = name, marks, single
    if key not in _MADE:
        _MADE[key] = Model(FAMILIES[name], marks, single=single)
    return _MADE[key]


def walk(model: Model, random: Random) -> list[int] | None:
    """Tokens of a complete answer, if one is found: calls are begun now and then, and gone on with
    as far as they may be."""
    matcher = model.matcher.deep_copy()
    ids: list[int] = []
    script: list[int] = []
    for step in range(200):
        if matcher.is_accepting() and (matcher.is_stopped() or step > random.randrange(200)):
            return ids
        bits = matcher.compute_bitmask()
        assert not matcher.is_error(), matcher.get_error()
        allowed = [one for one in range(model.size) if bits[one >> 3] >> (one & 7) & 1]
        allowed = [one for one in allowed if one != model.end]
        if not script and random.random() < 0.3:
            script = model.ids(*random.choice(SCRIPTS[model.family]))
        likely = [one for one in allowed if one in model.likely]
        follow = bool(script) and script[0] in allowed
        chosen = script[0] if follow else random.choice(likely or allowed)
        script = script[1:] if follow else []
        assert matcher.consume_token(chosen)
        ids.append(chosen)
    return None


ARGUMENTS = '{"city": "Paris", "days": 2}'
WRONG = '{"city": "Rome", "days": 2}'


def call(name: str, arguments: str = ARGUMENTS, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def tags(name: str, city: str) -> str:
    given_ = f"<parameter=city>\n{city}\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    return f"<function={name}>\n{given_}</function>"


_WANTED = [(name, text) for name in ("held", "free", "never") for text in (ARGUMENTS, WRONG)]
#: Calls as models write them.
SCRIPTS: dict[Family, list[list[str]]] = {
    HERMES: [["<tool_call>", f"\n{call(*one)}\n", "</tool_call>"] for one in _WANTED],
    LLAMA: [
        [*prefix, call(*one, key="parameters"), *more]
        for prefix in ([], ["<|python_tag|>"])
        for one in _WANTED
        for more in ([], ["; ", call(*one, key="parameters")])
    ],
    MISTRAL: [["[TOOL_CALLS]", name, "[ARGS]", text] for name, text in _WANTED],
    MISTRAL_LIST: [["[TOOL_CALLS]", f" [{call(*one)}, {call(*one)}]"] for one in _WANTED],
    QWEN_CODER: [
        [*before, tags(name, city), *after]
        for before, after in (([], []), (["<tool_call>", "\n"], ["\n", "</tool_call>"]))
        for name in ("held", "free", "never")
        for city in ("Paris", "Rome")
    ],
}


@pytest.mark.parametrize("marks", KINDS)
def test_hermes(marks: str) -> None:
    model = _model("hermes", marks)
    begin, end = "<tool_call>", "</tool_call>"
    for parts in ([""], ["text"], ["<tool_c"], ["a", BREAK, "é"], ['{"name": "x"}']):
        assert model.takes(*parts), parts
    for name, given_, right in (
        ("held", ARGUMENTS, True),
        ("held", WRONG, False),
        ("free", WRONG, True),
        ("free", "[1]", False),
        ("never", ARGUMENTS, False),
    ):
        parts = ["So:", begin, "\n" + call(name, given_) + "\n", end, "\nand ", begin]
        parts += ["\n" + call("free", "{}") + "\n", end, "."]
        assert model.takes(*parts) == right, (name, given_)
    assert not model.takes("So:", begin, " text")
    # Spelled out, and with a special token in the middle that nobody sees.
    assert not model.takes("<tool", "_call>", "text")
    assert not model.takes("<tool", BREAK, "_call>")
    one = _model("hermes", marks, True)
    assert one.takes("So:", begin, "\n" + call("held") + "\n", end)
    assert not one.takes("So:", begin, "\n" + call("held") + "\n", end, "x")


@pytest.mark.parametrize("marks", KINDS)
def test_llama(marks: str) -> None:
    model = _model("llama", marks)
    for parts in ([""], ["text {"], ["a", BREAK, "é"], ["; {"]):
        assert model.takes(*parts), parts
    right, wrong = call("held", key="parameters"), call("held", WRONG, "parameters")
    assert model.takes(right)
    assert model.takes("<|python_tag|>", right)
    assert model.takes(right + "; " + call("free", "{}", "parameters"))
    for parts in ([wrong], [" " + wrong], ["\x1c{"], ["<|python_tag|>", "x"], [" ", BREAK, wrong]):
        assert not model.takes(*parts), parts


@pytest.mark.parametrize("marks", KINDS)
def test_mistral(marks: str) -> None:
    model, older = _model("mistral", marks), _model("mistral-list", marks)
    begin, split = "[TOOL_CALLS]", "[ARGS]"
    assert model.takes("So:", begin, "held", split, ARGUMENTS, begin, "free", split, "{}")
    assert not model.takes(begin, "held", split, WRONG)
    assert not model.takes(begin, "never", split, ARGUMENTS)
    assert older.takes("So:", begin, f" [{call('held')}, {call('free', '{}')}]", "text")
    assert not older.takes(begin, f" [{call('held', WRONG)}]")


@pytest.mark.parametrize("marks", KINDS)
def test_coder(marks: str) -> None:
    model = _model("coder", marks)
    begin, end = "<tool_call>", "</tool_call>"
    assert model.takes(
        "a ", tags("held", "Paris"), " b ", begin, "\n" + tags("free", "x") + "\n", end
    )
    for wrong in (tags("held", "Rome"), tags("never", "Paris"), "<function=never>"):
        assert not model.takes("a ", wrong)
    assert not model.takes(begin, "\n" + tags("held", "Rome") + "\n", end)
    assert model.takes("<function=other>")


def test_the_compiler_takes_for_whole_what_the_vocabulary_does() -> None:
    """Otherwise a grammar would ask for a text that the model could not write with its token."""
    model = _model("hermes", "added")
    backend = Tokenizer.from_str(model.backend.to_str())
    backend.add_tokens([AddedToken(text, normalized=False) for text in ("[X]", "<a", "<a b>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END)
    size = backend.get_vocab_size()
    tokens = LLTokenizer(backend.to_str(), n_vocab=size, eos_token=[model.end])
    vocabulary = Vocabulary(tokenizer)
    whole = {one for one in vocabulary.added if tokens.is_special_token(one)}
    assert vocabulary.whole == whole
    assert backend.token_to_id("<tool_call>") in whole
    assert backend.token_to_id("[X]") not in whole
