"""Which engines probably keep the KV of which prompts: a bounded guess from what went there."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

_MIX = 0x1E37_79B9_7F4A_7C15
_BITS = (1 << 62) - 1


@dataclass(slots=True, eq=False)
class PrefixPlace:
    """One model on one engine, for as long as the engine has it loaded."""

    #: Tells its entries from those of other places; a place is forgotten with its engine or model,
    #: and its entries, which nobody asks for any more, leave in the course of time.
    mark: int
    #: Blocks that have been entered so far.
    entered: int = 0
    #: What was last used when no more than so many had been entered is not kept any more.
    floor: int = 0


class PrefixPlaces:
    """Names of blocks by the place that keeps them, at most ``max_blocks`` over all places.

    Entries are in two generations. Using one puts it into the younger generation; when that is half
    of the bound, it becomes the older one, and what has not been used since the last such change is
    forgotten. That takes no more than a store per block, where an exact order of use would take a
    list of everything.

    A chain is always used from its beginning, and all of it goes into one generation. So of every
    chain a place knows a beginning, which is found by bisection.
    """

    def __init__(self, max_blocks: int) -> None:
        self._half = max_blocks // 2
        #: How many blocks its place had seen when an entry was last used.
        self._younger: dict[int, int] = {}
        self._older: dict[int, int] = {}
        self._places = 0

    def __len__(self) -> int:
        """Entries, those included that nobody asks for any more."""
        return len(self._younger) + len(self._older)

    def open(self) -> PrefixPlace:
        """A place that keeps nothing yet."""
        self._places += 1
        return PrefixPlace(self._places * _MIX & _BITS)

    def known(self, place: PrefixPlace, names: Items[int]) -> int:
        """How many of a chain's first blocks the place probably keeps."""
        younger, older = self._younger.get, self._older.get
        mark, floor = place.mark, place.floor
        low, high = 0, len(names)
        middle = 0  # most chains are unknown from their first block on
        while low < high:
            key = names[middle] ^ mark
            if (younger(key) or older(key, 0)) > floor:
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        return low

    def enter(self, place: PrefixPlace, names: Items[int]) -> None:
        """The place computes a chain, or uses it."""
        names = names[: self._half]
        if len(self._younger) + len(names) > self._half:
            self._older, self._younger = self._younger, {}
        place.entered += len(names) - self.known(place, names)
        mark = place.mark
        self._younger.update(dict.fromkeys([name ^ mark for name in names], place.entered))

    @staticmethod
    def bound(place: PrefixPlace, blocks: int) -> None:
        """The place keeps no more than so many blocks now: those least recently used are gone."""
        place.floor = max(place.floor, place.entered - blocks)
