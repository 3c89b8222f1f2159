"""Stop strings: exact cuts, whatever the pieces."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon.http.stop_strings import StopStrings

TEXTS = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Reads character by character."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


def run(pieces: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    matcher = StopStrings(stops)
    out = [matcher.feed(piece) for piece in pieces]
    return [*out, matcher.finish()], matcher.found


@given(st.lists(TEXTS, max_size=6), STOPS)
def test_the_cut_does_not_depend_on_the_pieces(pieces: list[str], stops: list[str]) -> None:
    out, found = run(pieces, stops)
    assert ("".join(out), found) == reference("".join(pieces), stops)


@given(TEXTS, STOPS)
def test_only_a_proper_prefix_of_a_stop_string_is_withheld(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    shown = matcher.feed(text)
    if matcher.found is None:
        tail = text[len(shown) :]
        longest = max(
            (n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0
        )
        assert len(tail) == longest


def test_nothing_of_a_stop_string_is_shown_before_it_is_complete() -> None:
    assert run(["ABC", "DEF", "GHI", "JKL"], ["DEFGHIJ"]) == (
        ["ABC", "", "", "", ""],
        "DEFGHIJ",
    )


def test_a_stop_string_that_ends_within_a_piece_is_found() -> None:
    assert run(["is ", "Paris", " now"], ["Pari"]) == (["is ", "", "", ""], "Pari")


@pytest.mark.parametrize("length", [1_000])
def test_time_is_linear_for_the_worst_string(length: int) -> None:
    matcher = StopStrings(["a" * length + "b"])
    start = time.process_time()
    for _ in range(50_000):
        matcher.feed("a")
    assert time.process_time() - start < 5
