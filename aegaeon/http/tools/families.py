"""How the family of a model writes calls of tools, told by its chat template or by name."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon.http.tools.marks import Marks
from aegaeon.http.vocabulary import Vocabulary


@dataclass(frozen=True)
class Family:
    """A way to write calls: what the parser looks for, and what a grammar has around each call."""

    marks: Marks
    #: The key of a call's arguments.
    arguments: str = "arguments"
    #: Around a call's object, or around all of them if ``in_list``.
    before: str = ""
    after: str = ""
    between: str = ""
    in_list: bool = False
    #: A call is tags instead of an object.
    tagged: bool = False


HERMES = Family(
    Marks(begin="<tool_call>", end="</tool_call>"),
    before="<tool_call>\n",
    after="\n</tool_call>",
    between="\n",
)
LLAMA = Family(Marks(prefix="<|python_tag|>", separator=";"), arguments="parameters", between="; ")
MISTRAL_LIST = Family(
    Marks(begin="[TOOL_CALLS]", id_prefix="", id_length=9),
    before="[TOOL_CALLS] [",
    after="]",
    between=", ",
    in_list=True,
)
MISTRAL = Family(
    Marks(begin="[TOOL_CALLS]", split="[ARGS]", id_prefix="", id_length=9), before="[TOOL_CALLS]"
)
QWEN_CODER = Family(
    HERMES.marks, before=HERMES.before, after=HERMES.after, between="\n", tagged=True
)

#: By the names of `aegaeon.tool_parsers`; Mistral's has two forms.
_NAMED = {
    "hermes": HERMES,
    "llama3_json": LLAMA,
    "llama4_json": LLAMA,
    "qwen3_coder": QWEN_CODER,
    "qwen3_xml": QWEN_CODER,
}


def named_family(name: str, template: str, vocabulary: Vocabulary) -> Family | None:
    """The family of a name; None for one that a newer scheduler knows."""
    if name == "mistral":
        newer = "[ARGS]" in template or "[ARGS]" in vocabulary.added.values()
        return MISTRAL if newer else MISTRAL_LIST
    return _NAMED.get(name)


def family_of(template: str) -> Family | None:
    """The family whose form of calls a template shows or asks for."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL if "[ARGS]" in template else MISTRAL_LIST
    if "<tool_call>" in template:
        if "<function=" not in template:
            return HERMES
        return QWEN_CODER if "<parameter=" in template else None
    if "<|python_tag|>" in template or '"parameters": dictionary' in template:
        return LLAMA
    return None


def shown_ids(family: Family, vocabulary: Vocabulary) -> frozenset[int]:
    """Special tokens that mark calls, and are therefore part of the text that is parsed."""
    return frozenset(mark_ids(family, vocabulary).values()) & vocabulary.special


def mark_ids(family: Family, vocabulary: Vocabulary) -> dict[str, int]:
    """Marks of calls that are one token, and no text to grammars."""
    marks = family.marks
    texts = {marks.begin, marks.end, marks.prefix, marks.split, "[CALL_ID]"}
    return {
        text: token for token in vocabulary.whole if (text := vocabulary.added.get(token)) in texts
    }
