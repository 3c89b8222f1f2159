"""What is remembered of who keeps what: bounded, never of others, and forgotten in order of use."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aegaeon_scheduler.core.prefix_chain import PrefixChain
from aegaeon_scheduler.core.prefix_places import PrefixPlace, PrefixPlaces

BOUND = 24
TOKENS = st.lists(st.integers(0, 1 << 32 - 1), max_size=80)


def names_of(text: str) -> array[int]:
    """A chain with one block per letter."""
    return PrefixChain("m", "", 1, [ord(letter) for letter in text]).names


@given(tokens=TOKENS, cut=st.integers(0, 80), block=st.sampled_from([1, 3, 16]))
def test_a_chain_is_the_same_however_its_tokens_come(
    tokens: list[int], cut: int, block: int
) -> None:
    whole = PrefixChain("m", "s", block, tokens)
    grown = PrefixChain("m", "s", block, tokens[:cut])
    before = grown.names[:]
    grown.extend(tokens[cut:])
    assert grown.names == whole.names
    assert whole.names[: len(before)] == before
    assert len(whole.names) == len(tokens) // block


@given(first=TOKENS, second=TOKENS)
def test_chains_are_alike_as_far_as_their_tokens_are(first: list[int], second: list[int]) -> None:
    one, other = (PrefixChain("m", "", 1, tokens).names for tokens in (first, second))
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    assert one[:common] == other[:common]
    assert not set(one[common:]) & set(other[common:])


def test_other_weights_and_other_salts_share_nothing() -> None:
    roots = [("m", ""), ("n", ""), ("m", "s"), ("m", "t"), ("ms", "")]
    names = [name for root in roots for name in PrefixChain(*root, 1, [5, 5, 5]).names]
    assert len(set(names)) == 15


@dataclass
class Known:
    """What has happened at a place."""

    place: PrefixPlace
    #: Everything ever entered.
    ever: set[str] = field(default_factory=set)


class AnyUse(RuleBasedStateMachine):
    """Three places, chains of few letters, a bound that is reached soon."""

    def __init__(self) -> None:
        super().__init__()
        self.places = PrefixPlaces(BOUND)
        self.known = [Known(self.places.open()) for _ in range(3)]

    def longest(self, known: Known, text: str) -> int:
        return max(n for n in range(len(text) + 1) if not n or text[:n] in known.ever)

    @rule(number=st.integers(0, 2), text=st.text("ab", max_size=16))
    def enter(self, number: int, text: str) -> None:
        known = self.known[number]
        self.places.enter(known.place, names_of(text))
        kept = min(len(text), BOUND // 2)
        known.ever |= {text[: n + 1] for n in range(kept)}
        assert self.places.known(known.place, names_of(text)) == kept

    @rule(number=st.integers(0, 2), blocks=st.integers(0, 10))
    def bound(self, number: int, blocks: int) -> None:
        self.places.bound(self.known[number].place, blocks)
        if not blocks:
            self.known[number].ever.clear()

    @rule(number=st.integers(0, 2))
    def forget(self, number: int) -> None:
        self.known[number] = Known(self.places.open())

    @rule(text=st.text("ab", max_size=16))
    def look_up(self, text: str) -> None:
        for known in self.known:
            found = self.places.known(known.place, names_of(text))
            assert found <= self.longest(known, text), "never been there"

    @invariant()
    def it_is_bounded(self) -> None:
        assert len(self.places) <= BOUND


AnyUse.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestAnyUse = AnyUse.TestCase


@given(others=st.lists(st.text("cd", min_size=1, max_size=6), max_size=4))
def test_what_was_used_lately_is_known_and_what_was_not_is_forgotten(others: list[str]) -> None:
    places = PrefixPlaces(64)
    place, elsewhere = places.open(), places.open()
    places.enter(place, names_of("aaaa"))
    for text in others:
        places.enter(elsewhere, names_of(text))
    assert places.known(place, names_of("aaaa")) == 4, "less than half of the bound came after it"
    for number in range(64):
        places.enter(elsewhere, names_of(chr(200 + number)))
    assert places.known(place, names_of("aaaa")) == 0


def test_a_smaller_memory_forgets_what_was_used_least_recently() -> None:
    places = PrefixPlaces(1_000)
    place = places.open()
    for text in ("aaaa", "bbbb", "cccc"):
        places.enter(place, names_of(text))
    places.enter(place, names_of("aa"))
    places.bound(place, 4)
    found = {text: places.known(place, names_of(text)) for text in ("aaaa", "bbbb", "cccc")}
    assert found == {"aaaa": 2, "bbbb": 0, "cccc": 4}
    places.bound(place, 1_000)
    assert places.known(place, names_of("bbbb")) == 0, "what is gone does not come back by itself"


def test_without_room_nothing_is_remembered() -> None:
    places = PrefixPlaces(1)
    place = places.open()
    places.enter(place, names_of("abc"))
    assert (len(places), places.known(place, names_of("abc"))) == (0, 0)
