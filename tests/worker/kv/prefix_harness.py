"""Sequences whose KV says which tokens it is of, and who computed it."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import torch

from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.kv.prefix_keys import Prefix
from aegaeon_worker.kv.shape import BLOCK_TOKENS
from tests.worker.kv.memory_harness import Harness

#: Fractions of an integer that tell writers apart, as rounding tells one batch from another.
WRITERS = 1 << 8


def document(number: int, length: int) -> list[int]:
    """Tokens that no other document begins with."""
    return [1000 * number + position for position in range(length)]


class PrefixHarness:
    """Does to memory what an engine does, and checks every value that it reads.

    ``exact`` is what each stored token of a sequence was when it was stored or found: it may come
    from somebody else, but must never change.
    """

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.memory = harness.memory
        self.tokens: dict[int, list[int]] = {}
        self.models: dict[int, str] = {}
        self.salts: dict[int, str] = {}
        self.exact: dict[int, list[float]] = {}

    def add(
        self,
        sequence: int,
        tokens: list[int],
        model: str = "a",
        *,
        salt: str = "",
        source: KvPlace | None = None,
    ) -> None:
        self.tokens[sequence] = tokens
        self.models[sequence] = model
        self.salts[sequence] = salt
        self.exact[sequence] = []
        self.memory.add_sequence(sequence, model, source, Prefix(tokens, salt))

    def activate(self, *sequences: int) -> list[int]:
        wants = [(sequence, len(self.tokens[sequence])) for sequence in sequences]
        turn = self.memory.activate(self.models[sequences[0]], wants)
        self.note_lost()
        for sequence in turn:
            self.check(sequence)
        return turn

    def grow(self, sequence: int) -> bool:
        grown = self.memory.grow(sequence, len(self.tokens[sequence]))
        self.note_lost()
        if grown:
            self.check(sequence)
        return grown

    def run(self, sequence: int, tokens: list[int], model: str = "a", *, salt: str = "") -> int:
        """Start a sequence and compute all its tokens in a turn; how many were there already."""
        self.add(sequence, tokens, model, salt=salt)
        assert self.activate(sequence) == [sequence]
        found = self.memory.stored_tokens(sequence)
        self.compute(sequence)
        return found

    def compute(self, sequence: int, most: int = 1 << 20) -> None:
        """Store the KV of the next tokens, in blocks that nobody else may have."""
        stored, tokens = self.memory.stored_tokens(sequence), self.tokens[sequence]
        end = min(len(tokens), stored + most)
        for position in range(stored, end):
            block = self._block(sequence, position)
            cache = self._kv(sequence).cache
            assert cache._device[block] == 1, "a shared block is written"
            assert cache._index.on_device(block) is None, "a block that can be found is written"
            value = self.value(sequence, position)
            self._slot(sequence, position).fill_(value)
            self.exact[sequence].append(value)
        self.memory.commit(sequence, end)

    def check(self, sequence: int) -> None:
        """Every stored token has its own value still, or one that others computed for it."""
        exact = self.exact[sequence]
        for position in range(self.memory.stored_tokens(sequence)):
            slot = self._slot(sequence, position)
            value = float(slot.flatten()[0])
            assert bool((slot == value).all()), (sequence, position)
            if position == len(exact):
                exact.append(value)
                assert int(value) == int(self.value(sequence, position)), "KV of other tokens"
            assert exact[position] == value, (sequence, position)

    def end(self, sequence: int, *, sound: bool = True) -> None:
        self.memory.free(sequence, sound=sound)
        for known in (self.tokens, self.models, self.salts, self.exact):
            del known[sequence]  # type: ignore[attr-defined]

    def note_lost(self) -> None:
        for sequence in self.memory.take_lost():
            self.exact[sequence].clear()

    def value(self, sequence: int, position: int) -> float:
        salt = self.salts[sequence]
        named = f"{self.models[sequence]} {salt} {self.tokens[sequence][: position + 1]}"
        return crc32(named.encode()) % (1 << 14) + sequence % WRITERS / WRITERS

    def _kv(self, sequence: int):  # type: ignore[no-untyped-def]
        return self.harness.models[self.models[sequence]].kv

    def _block(self, sequence: int, position: int) -> int:
        block: int = self._kv(sequence).block_table(sequence)[position // BLOCK_TOKENS]
        return block

    def _slot(self, sequence: int, position: int) -> torch.Tensor:
        tensor = self._kv(sequence).tensor[self._block(sequence, position)]
        slot: torch.Tensor = tensor[:, :, position % BLOCK_TOKENS, :, ::512]
        return slot


MakePrefixHarness = Callable[..., PrefixHarness]
