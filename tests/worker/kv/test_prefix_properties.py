from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
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

from aegaeon_worker.kv.errors import OutOfHostBlocks, PoolTooSmall
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.place import HostBlock
from tests.worker.kv.memory_harness import ODD_SHAPE, SHAPE, WEIGHT_CHUNKS, Harness
from tests.worker.kv.prefix_harness import PrefixHarness, document
from tests.worker.kv.test_memory_properties import no_space

SLAB = 2 << 20


class PrefixMachine(RuleBasedStateMachine):
    """Sequences of two models that often begin alike, on a worker whose neighbour takes slabs."""

    @initialize(
        num_chunks=st.integers(WEIGHT_CHUNKS + 1, 8),
        num_slabs=st.integers(1, 6),
        kind=st.sampled_from(["cpu", "fake"]),
    )
    def start(self, num_chunks: int, num_slabs: int, kind: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name)
        self.harness = Harness(
            {"a": SHAPE, "b": ODD_SHAPE},
            num_chunks=num_chunks,
            num_slabs=num_slabs,
            slab_nbytes=SLAB,
            kind=kind,
            slab_dir=path,
        )
        self.prefixes = PrefixHarness(self.harness)
        self.memory = self.harness.memory
        for weights in (model.weights for model in self.harness.models.values()):
            weights.pin()
        self.neighbour = HostSlabs(path, num_slabs, SLAB)
        self.theirs: list[HostBlock] = []
        self.turn: list[int] = []
        self.held: list[int] = []
        self.leaving: list[int] = []
        self.full = mock.patch.object(os, "posix_fallocate", side_effect=no_space)
        self.is_full = False
        self.next_sequence = 1

    @property
    def running(self) -> list[int]:
        gone = {*self.held, *self.leaving}
        return [sequence for sequence in self.prefixes.tokens if sequence not in gone]

    @rule(
        model=st.sampled_from(["a", "a", "b"]),
        number=st.integers(1, 2),
        common=st.integers(0, 70),
        own=st.integers(1, 40),
        salt=st.sampled_from(["", "", "", "other"]),
        runs=st.booleans(),
    )
    def add(self, model: str, number: int, common: int, own: int, salt: str, runs: bool) -> None:
        sequence, self.next_sequence = self.next_sequence, self.next_sequence + 1
        tokens = document(number, common) + document(sequence % 3 + 10, own)
        self.prefixes.add(sequence, tokens, model, salt=salt)
        if runs:
            self.run_turn([sequence], most=200)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), most=st.integers(0, 60), generated=st.integers(0, 20))
    def turn_of_one_model(self, data: st.DataObject, most: int, generated: int) -> None:
        model = self.prefixes.models[data.draw(st.sampled_from(self.running))]
        members = [s for s in self.running if self.prefixes.models[s] == model]
        for sequence in members:
            self.prefixes.tokens[sequence] += document(20, generated)
        self.run_turn(data.draw(st.permutations(members)), most)

    def run_turn(self, members: list[int], most: int) -> None:
        try:
            self.turn = self.prefixes.activate(*members)
        except PoolTooSmall:
            model = self.prefixes.models[members[0]]
            assert len(self.prefixes.tokens[members[0]]) > self.harness.models[model].max_tokens
            return
        assert self.turn
        for sequence in self.turn:
            self.prefixes.compute(sequence, most)

    @precondition(lambda self: self.turn)
    @rule(data=st.data(), generated=st.integers(0, 20), most=st.integers(0, 60))
    def grow(self, data: st.DataObject, generated: int, most: int) -> None:
        sequence = data.draw(st.sampled_from(self.turn))
        self.prefixes.tokens[sequence] += document(20, generated)
        with suppress(PoolTooSmall):
            if self.prefixes.grow(sequence):
                self.prefixes.compute(sequence, most)
        for member in self.turn:
            self.prefixes.check(member)

    @precondition(lambda self: self.turn)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.turn))
        self.turn.remove(sequence)
        self.memory.preempt(sequence)
        self.prefixes.note_lost()

    @precondition(lambda self: self.prefixes.tokens)
    @rule(data=st.data(), sound=st.sampled_from([True, True, True, False]))
    def end(self, data: st.DataObject, sound: bool) -> None:
        self.forget(data.draw(st.sampled_from(sorted(self.prefixes.tokens))), sound=sound)

    def forget(self, sequence: int, *, sound: bool = True) -> None:
        self.prefixes.end(sequence, sound=sound)
        for known in (self.turn, self.held, self.leaving):
            if sequence in known:
                known.remove(sequence)

    @precondition(lambda self: self.turn)
    @rule(data=st.data(), wait=st.booleans())
    def hand_off(self, data: st.DataObject, wait: bool) -> None:
        sequence = data.draw(st.sampled_from(self.turn))
        self.turn.remove(sequence)
        self.leaving.append(sequence)
        self.memory.hand_off([sequence])
        self.prefixes.note_lost()
        self.see_off(wait=wait)

    def see_off(self, *, wait: bool) -> None:
        for done in self.memory.hand_offs.finish(wait=wait):
            self.leaving.remove(done.sequence)
            if done.place.num_tokens:
                self.held.append(done.sequence)
                self.places = getattr(self, "places", {}) | {done.sequence: done.place}
            else:
                for known in (self.prefixes.tokens, self.prefixes.models):
                    del known[done.sequence]  # type: ignore[attr-defined]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.held))
        self.memory.hand_offs.release([sequence])
        self.held.remove(sequence)
        for known in (self.prefixes.tokens, self.prefixes.models):
            del known[sequence]  # type: ignore[attr-defined]

    @rule(model=st.sampled_from(["a", "b"]))
    def prefetch(self, model: str) -> None:
        self.memory.prefetch(model)

    @rule()
    def tidy(self) -> None:
        self.memory.tidy()

    @rule(blocks=st.integers(1, 3))
    def neighbour_takes_slabs(self, blocks: int) -> None:
        with suppress(OutOfHostBlocks):
            taken = self.neighbour.take(SLAB, blocks)
            for block in taken:
                self.neighbour.view(block, 1, SLAB).fill_(0x7F)
            self.theirs += taken

    @precondition(lambda self: self.theirs)
    @rule()
    def neighbour_gives_slabs_back(self) -> None:
        theirs, self.theirs = self.theirs, []
        self.neighbour.give_back(theirs)

    @rule()
    def toggle_full_file_system(self) -> None:
        if self.is_full:
            self.full.stop()
        else:
            self.full.start()
        self.is_full = not self.is_full

    @invariant()
    def everything_has_one_owner_or_known_users(self) -> None:
        if not hasattr(self, "memory"):
            return
        self.memory.audit()
        for sequence in self.running:
            assert self.memory.stored_tokens(sequence) >= len(self.prefixes.exact[sequence])

    @invariant()
    def what_is_held_for_others_stays_readable(self) -> None:
        if not hasattr(self, "memory"):
            return
        for sequence in self.held:
            content = self.harness.models[self.prefixes.models[sequence]].kv._content
            assert self.harness.slabs.holds(self.places[sequence], content)

    @invariant()
    def keeping_takes_no_slab_from_anybody(self) -> None:
        """A slab that this worker owns has a block in use."""
        if hasattr(self, "memory"):
            self.harness.slabs.audit()

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        if self.is_full:
            self.full.stop()
        self.harness.close()
        self.neighbour.give_back(self.theirs)
        self.neighbour.close()
        self.folder.cleanup()


TestPrefixMachine = PrefixMachine.TestCase
TestPrefixMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
