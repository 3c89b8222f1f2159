from __future__ import annotations

import tempfile
import time
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.kv.pull import Pull
from tests.worker.kv.memory_harness import ODD_SHAPE, SHAPE, WEIGHT_CHUNKS, Harness

SHAPES = {"a": SHAPE, "b": ODD_SHAPE}
SEQUENCES = st.integers(1, 4)
#: Of the reading worker alone: they need the room that KV was copied to.
CROWD = st.integers(11, 12)
#: Answers come from threads; none takes nearly as long.
DEADLINE_S = 30.0


class DeviceHandOffMachine(RuleBasedStateMachine):
    """One worker offers KV on its device, another copies it; both run short of room, and end
    sequences, at any moment."""

    @initialize(kind=st.sampled_from(["cpu", "fake"]), spare=st.integers(3, 5))
    def start_workers(self, kind: str, spare: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.kind, self.chunks = kind, WEIGHT_CHUNKS + spare
        self.joined = 0
        self.source, self.target = self.join(lends=True), self.join(lends=False)
        self.begin_again()
        self.running: dict[int, str] = {}
        #: What each was told, while it has not run.
        self.coming: dict[int, KvPlace] = {}

    def join(self, *, lends: bool) -> Harness:
        self.joined += 1
        return Harness(
            SHAPES,
            num_chunks=self.chunks,
            kind=self.kind,
            slab_dir=Path(self.folder.name),
            peers=(self.joined, lends),
        )

    def begin_again(self) -> None:
        """Of the worker that lends."""
        self.there: dict[int, str] = {}
        self.offered: dict[int, KvPlace] = {}

    @rule(sequence=SEQUENCES, model=st.sampled_from("ab"), tokens=st.integers(1, 60))
    def compute(self, sequence: int, model: str, tokens: int) -> None:
        """At the expense of offers, if there is no other room."""
        if sequence not in self.source.memory:
            self.source.start(sequence, model, tokens)
            self.there[sequence] = model

    @rule(sequence=SEQUENCES)
    def offer(self, sequence: int) -> None:
        model = self.there.get(sequence)
        if model is None or sequence in self.offered:
            return
        if not self.source.models[model].kv[sequence].resident:
            return
        self.source.memory.hand_off([sequence], on_device=True)
        for done in self.source.memory.hand_offs.finish(wait=False):
            self.offered[done.sequence] = done.place
            assert done.place.offer

    @rule(
        sequence=SEQUENCES,
        model=st.sampled_from("ab"),
        tokens=st.integers(1, 60),
        upto=st.sampled_from(["", "copying", "there", "there"]),
        early=st.sampled_from(["", "", "", "evict", "release", "death"]),
    )
    def move(self, sequence: int, model: str, tokens: int, upto: str, early: str) -> None:
        """What mostly happens in a row; or something else does, before the copy is taken in."""
        if sequence in self.running:
            self.end_at_the_target(sequence)
        self.compute(sequence, model, tokens)
        self.offer(sequence)
        self.accept(sequence)
        if upto:
            self.settle()
            self.take_in(wait=upto == "there")
        if early == "evict":
            self.compute(sequence % 4 + 1, "a", 60)
        elif early == "release":
            self.end_at_the_source(sequence, whole=False)
        elif early:
            self.the_source_ends()

    @rule(sequence=SEQUENCES)
    def accept(self, sequence: int) -> None:
        place = self.offered.get(sequence)
        if place is not None and sequence not in self.target.memory:
            self.running[sequence] = self.there[sequence]
            self.coming[sequence] = place
            self.target.memory.add_sequence(sequence, self.there[sequence], place)

    @rule()
    def settle(self) -> None:
        """Until nobody waits for a word of the other; what arrives when makes no difference."""
        deadline = time.monotonic() + DEADLINE_S
        while any(not (pull.over or pull.copying) for pull in self.pulls()):
            assert time.monotonic() < deadline, "a pull waits for nothing"
            for worker in (self.source, self.target):
                while worker.inbox.qsize():
                    worker.hear()
            self.source.memory.hand_offs.finish(wait=True)
            self.target.memory.pulls.advance(wait=False)
            time.sleep(0.001)

    @rule(wait=st.booleans())
    def take_in(self, wait: bool) -> None:
        self.target.memory.pulls.advance(wait=wait)

    @rule()
    def publish(self) -> None:
        """What had to leave the device."""
        assert self.source.memory.hand_offs.finish(wait=True) == []

    @rule(sequence=SEQUENCES, patient=st.booleans())
    def run_it(self, sequence: int, patient: bool) -> None:
        """Where it was sent, when its KV is there, or before."""
        if sequence not in self.running:
            return
        if patient:
            while any(not pull.over for pull in self.pulls()):
                self.settle()
                self.take_in(wait=True)
            self.publish()
        place, model = self.coming.get(sequence), self.running[sequence]
        room = self.target.memory.stored_tokens(sequence) + 1
        available = place is not None and self.offered.get(sequence) is place
        self.target.memory.activate(model, [(sequence, room)])
        self.note()
        stored = self.target.memory.stored_tokens(sequence)
        if patient and available:
            assert place is not None
            assert stored == place.num_tokens
        self.target.check_kv(sequence, model)

    def note(self) -> None:
        for imported in self.target.memory.take_imports():
            place = self.coming.pop(imported.sequence)
            assert imported.num_tokens in (0, place.num_tokens)

    @rule(sequence=CROWD, model=st.sampled_from("ab"), tokens=st.integers(1, 100))
    def crowd(self, sequence: int, model: str, tokens: int) -> None:
        if sequence not in self.target.memory:
            self.target.start(sequence, model, tokens)
            self.running[sequence] = model
            self.note()

    @rule(sequence=st.one_of(SEQUENCES, CROWD))
    def end_at_the_target(self, sequence: int) -> None:
        if sequence in self.running:
            self.target.memory.free(sequence)
            del self.running[sequence]
            self.coming.pop(sequence, None)

    @rule(sequence=SEQUENCES, whole=st.booleans())
    def end_at_the_source(self, sequence: int, whole: bool) -> None:
        """Release what is offered; or cancel whatever is there."""
        self.source.memory.hand_offs.release([sequence])
        if whole and sequence in self.source.memory:
            self.source.memory.free(sequence)
        if whole or sequence in self.offered:
            self.there.pop(sequence, None)
            self.offered.pop(sequence, None)

    @rule()
    def the_source_ends(self) -> None:
        """And another one takes its place."""
        self.source.memory.audit()
        self.source.close()
        self.source = self.join(lends=True)
        self.begin_again()

    @invariant()
    def everything_has_one_owner(self) -> None:
        if not hasattr(self, "running"):
            return
        for worker, known in ((self.source, self.there), (self.target, self.running)):
            worker.memory.audit()
            assert worker.memory.num_sequences == len(known)
        self.target.memory.pulls.take_outcomes()

    def teardown(self) -> None:
        if not hasattr(self, "running"):
            return
        for sequence in list(self.running):
            self.end_at_the_target(sequence)
        for sequence in list(self.there):
            self.end_at_the_source(sequence, whole=True)
        self.target.memory.pulls.advance(wait=True)
        self.everything_has_one_owner()
        for worker in (self.source, self.target):
            assert worker.memory.device_usage().kv == 0
            worker.close()
        assert list(Path(self.folder.name).glob("device-*")) == []
        self.folder.cleanup()

    def pulls(self) -> list[Pull]:
        entries = ((s, m) for s, m in self.running.items() if s in self.coming)
        found = (self.target.models[m].kv[s].pull for s, m in entries)
        return [pull for pull in found if pull is not None]


TestDeviceHandOffMachine = DeviceHandOffMachine.TestCase
TestDeviceHandOffMachine.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)
