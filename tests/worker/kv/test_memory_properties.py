from __future__ import annotations

import errno
import os
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from aegaeon_worker.kv.errors import PoolTooSmall
from aegaeon_worker.kv.shape import KvShape
from tests.worker.kv.memory_harness import ODD_SHAPE, SHAPE, WEIGHT_CHUNKS, Harness

SHAPES = {"a": SHAPE, "b": ODD_SHAPE}


class MemoryMachine(RuleBasedStateMachine):
    """Random turns of two models over tiny pools and slabs, file system full at times."""

    @initialize(
        num_chunks=st.integers(WEIGHT_CHUNKS + 1, 7),
        num_slabs=st.integers(1, 5),
        kind=st.sampled_from(["cpu", "fake"]),
    )
    def start(self, num_chunks: int, num_slabs: int, kind: str) -> None:
        self.harness = Harness(
            SHAPES, num_chunks=num_chunks, num_slabs=num_slabs, slab_nbytes=2 << 20, kind=kind
        )
        self.memory = self.harness.memory
        for model in self.harness.models.values():
            model.weights.pin()
        self.sequences: dict[int, str] = {}
        self.stored: dict[int, int] = {}
        self.turn: list[int] = []
        self.full = mock.patch.object(os, "posix_fallocate", side_effect=no_space)
        self.is_full = False
        self.next_sequence = 1

    @rule(model=st.sampled_from(["a", "b"]))
    def prefetch(self, model: str) -> None:
        self.memory.prefetch(model)

    @rule(model=st.sampled_from(["a", "b"]))
    def add(self, model: str) -> None:
        self.harness.start(self.next_sequence, model)
        self.sequences[self.next_sequence] = model
        self.stored[self.next_sequence] = 0
        self.next_sequence += 1

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), room=st.integers(1, 70))
    def activate(self, data: st.DataObject, room: int) -> None:
        model = self.sequences[data.draw(st.sampled_from(sorted(self.sequences)))]
        wanted = data.draw(st.permutations([s for s, m in self.sequences.items() if m == model]))
        wants = [(sequence, self.stored[sequence] + room) for sequence in wanted]
        try:
            turn = self.memory.activate(model, wants)
        except PoolTooSmall:
            assert wants[0][1] > self.harness.models[model].max_tokens
            return
        self.note_lost()
        self.turn = turn
        assert self.turn
        assert self.turn == wanted[: len(self.turn)]
        self.harness.check_weights(model, model)
        for sequence, capacity in wants[: len(self.turn)]:
            self.harness.check_kv(sequence, model)
            self.append(sequence, max(0, capacity - self.stored[sequence]))

    @precondition(lambda self: self.turn)
    @rule(data=st.data(), tokens=st.integers(1, 40))
    def grow(self, data: st.DataObject, tokens: int) -> None:
        sequence = data.draw(st.sampled_from(self.turn))
        try:
            grown = self.memory.grow(sequence, self.stored[sequence] + tokens)
        except PoolTooSmall:
            return
        self.note_lost()
        if grown:
            self.append(sequence, tokens)
        for member in self.turn:
            self.harness.check_kv(member, self.sequences[member])

    @precondition(lambda self: self.turn)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.turn))
        self.turn.remove(sequence)
        self.memory.preempt(sequence)
        self.note_lost()

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.sequences)))
        self.memory.free(sequence)
        del self.sequences[sequence], self.stored[sequence]
        self.turn = [member for member in self.turn if member != sequence]

    @rule()
    def toggle_full_file_system(self) -> None:
        if self.is_full:
            self.full.stop()
        else:
            self.full.start()
        self.is_full = not self.is_full

    @invariant()
    def everything_has_one_owner_and_nothing_is_lost_silently(self) -> None:
        if not hasattr(self, "memory"):
            return
        self.memory.audit()
        for sequence, tokens in self.stored.items():
            assert self.memory.stored_tokens(sequence) == tokens

    def append(self, sequence: int, tokens: int) -> None:
        self.harness.append(sequence, self.sequences[sequence], tokens)
        self.stored[sequence] += tokens
        blocks = self.harness.models[self.sequences[sequence]].kv.block_table(sequence)
        assert len(blocks) >= KvShape.blocks_for(self.stored[sequence])

    def note_lost(self) -> None:
        for sequence in self.memory.take_lost():
            assert self.stored[sequence] > 0
            self.stored[sequence] = 0

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        if self.is_full:
            self.full.stop()
        self.harness.close()


def no_space(fd: int, offset: int, nbytes: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
