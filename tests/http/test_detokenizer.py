"""The detokenizer against the tokenizers' own one-shot decoding."""

from __future__ import annotations

import time
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from aegaeon.demo_model import fetch_demo_model
from aegaeon.http.detokenizer import Detokenizer, text_of
from aegaeon.http.vocabulary import Vocabulary
from aegaeon.utils import get_tokenizer
from tests.http.tokenizers_made import ACCENTED, MADE, SPACED, SPECIAL, byte_level

KINDS = [*MADE, "demo"]


@cache
def tokenizer_of(kind: str):
    return get_tokenizer(fetch_demo_model()) if kind == "demo" else MADE[kind]()


@cache
def vocabulary_of(kind: str) -> Vocabulary:
    return Vocabulary(tokenizer_of(kind))


def cut(ids: list[int], sizes: list[int]) -> list[list[int]]:
    parts, begin = [], 0
    for size in [*sizes, len(ids)]:
        parts.append(ids[begin : begin + size])
        begin += size
    return parts


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=60)
@given(data=st.data(), skip=st.booleans())
def test_joined_deltas_are_the_one_shot_text(kind: str, data: st.DataObject, skip: bool) -> None:
    tokenizer, vocabulary = tokenizer_of(kind), vocabulary_of(kind)
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) + 3), max_size=40))
    sizes = data.draw(st.lists(st.integers(0, 5), max_size=20))
    detokenizer = Detokenizer(vocabulary, skip_special_tokens=skip)
    deltas = [detokenizer.feed(part) for part in cut(ids, sizes)]
    expected = tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join([*deltas, detokenizer.finish()]) == expected


@pytest.mark.parametrize("kind", ["byte-level", "demo"])
@settings(deadline=None, max_examples=60)
@given(text=st.text(max_size=60))
def test_text_comes_back(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(text, add_special_tokens=False)
    skip = {"skip_special_tokens": False}
    assert text_of(vocabulary_of(kind), ids, **skip) == tokenizer.decode(ids, **skip)


def test_an_unfinished_character_is_held_and_replaced_at_the_end() -> None:
    tokenizer = byte_level()
    vocabulary = Vocabulary(tokenizer)
    one, two = [tokenizer.convert_tokens_to_ids(piece) for piece in ("ðŁ", "ĺĢ")]
    whole = Detokenizer(vocabulary)
    assert [whole.feed([one]), whole.feed([two]), whole.finish()] == ["", "😀", ""]
    half = Detokenizer(vocabulary)
    assert [half.feed([one]), half.finish()] == ["", "\ufffd"]


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback", "metaspace"])
def test_added_tokens_come_out_verbatim(kind: str) -> None:
    tokenizer = MADE[kind]()
    tokenizer.add_tokens([AddedToken(ACCENTED, normalized=False)])
    vocabulary = Vocabulary(tokenizer)
    ids = tokenizer.convert_tokens_to_ids([SPACED, ACCENTED, SPACED])
    assert text_of(vocabulary, ids) == SPACED + ACCENTED + SPACED


@pytest.mark.parametrize("kind", list(MADE))
def test_special_tokens_are_skipped_on_demand(kind: str) -> None:
    tokenizer, vocabulary = tokenizer_of(kind), vocabulary_of(kind)
    end = tokenizer.convert_tokens_to_ids(SPECIAL)
    assert SPECIAL not in text_of(vocabulary, [end, end])
    assert SPECIAL in text_of(vocabulary, [end, end], skip_special_tokens=False)


def test_a_run_of_bytes_is_one_text_when_it_ends() -> None:
    tokenizer, vocabulary = tokenizer_of("byte-fallback"), vocabulary_of("byte-fallback")
    snowman = tokenizer.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in "☃".encode()])
    word = tokenizer.convert_tokens_to_ids("wor")
    detokenizer = Detokenizer(vocabulary)
    assert [detokenizer.feed([token]) for token in [*snowman, word]] == ["", "", "", "☃wor"]


@pytest.mark.parametrize("kind", KINDS)
def test_time_is_linear(kind: str) -> None:
    """Even for bytes that never become a character."""
    vocabulary = vocabulary_of(kind)
    vocabulary.piece(3)

    def seconds(count: int) -> float:
        detokenizer = Detokenizer(vocabulary)
        start = time.process_time()
        for _ in range(count):
            detokenizer.feed([3])
        detokenizer.finish()
        return time.process_time() - start

    seconds(1000)
    assert seconds(40_000) < 60 * max(seconds(4_000), 0.001)
