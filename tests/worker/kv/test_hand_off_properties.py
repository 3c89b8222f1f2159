from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from aegaeon_worker.kv.place import KvPlace
from tests.worker.kv.memory_harness import ODD_SHAPE, SHAPE, WEIGHT_CHUNKS, Harness

SHAPES = {"a": SHAPE, "b": ODD_SHAPE}
SEQUENCES = st.integers(1, 5)
WORKERS = st.integers(0, 2)


@dataclass
class Worker:
    """What one of them should know; sequences have the same number wherever they are."""

    harness: Harness
    running: dict[int, str] = field(default_factory=dict)
    leaving: dict[int, str] = field(default_factory=dict)
    held: dict[int, KvPlace] = field(default_factory=dict)
    coming: dict[int, tuple[Worker, KvPlace]] = field(default_factory=dict)
    dead: bool = False


class HandOffMachine(RuleBasedStateMachine):
    """Workers of a node hand sequences to each other, free them at any time, and die."""

    @initialize(num_slabs=st.integers(2, 7), kinds=st.permutations(["cpu", "fake", "fake"]))
    def start_workers(self, num_slabs: int, kinds: list[str]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.num_slabs = num_slabs
        self.kinds = kinds
        self.every: list[Worker] = []
        self.workers = [self.new_worker(number) for number in range(3)]
        self.places: dict[int, tuple[str, Worker, KvPlace]] = {}

    def new_worker(self, number: int) -> Worker:
        harness = Harness(
            SHAPES,
            num_chunks=WEIGHT_CHUNKS + 3,
            num_slabs=self.num_slabs,
            kind=self.kinds[number],
            slab_dir=Path(self.folder.name),
        )
        self.every.append(Worker(harness))
        return self.every[-1]

    @rule(
        number=WORKERS,
        sequence=SEQUENCES,
        model=st.sampled_from("ab"),
        tokens=st.integers(1, 60),
        leaves=st.booleans(),
        wait=st.booleans(),
    )
    def start(
        self, number: int, sequence: int, model: str, tokens: int, leaves: bool, wait: bool
    ) -> None:
        worker = self.workers[number]
        if sequence in worker.harness.memory:
            return
        worker.harness.start(sequence, model, tokens)
        worker.running[sequence] = model
        if leaves:
            self.hand_off(worker, [sequence], wait=wait)
        self.note(worker)

    @precondition(lambda self: any(worker.running for worker in self.workers))
    @rule(data=st.data(), room=st.integers(1, 40), wait=st.booleans())
    def run_a_turn(self, data: st.DataObject, room: int, wait: bool) -> None:
        """All sequences of a model at one worker, which come from elsewhere in part."""
        worker = data.draw(st.sampled_from([w for w in self.workers if w.running]))
        model = data.draw(st.sampled_from(sorted(set(worker.running.values()))))
        self.turn(worker, model, room)
        leaving = data.draw(st.sets(st.sampled_from(sorted(worker.running))))
        self.hand_off(worker, sorted(leaving & self.resident(worker)), wait=wait)
        self.note(worker)

    def turn(self, worker: Worker, model: str, room: int) -> None:
        memory = worker.harness.memory
        members = [s for s, of in worker.running.items() if of == model]
        wants = [(s, memory.stored_tokens(s) + room) for s in members]
        if any(tokens > worker.harness.models[model].max_tokens for _, tokens in wants):
            return
        turn = memory.activate(model, wants)
        self.note(worker)
        for sequence in turn:
            worker.harness.check_kv(sequence, model)
            worker.harness.append(sequence, model, room // 2)

    @staticmethod
    def resident(worker: Worker) -> set[int]:
        kv = {s: worker.harness.models[m].kv[s] for s, m in worker.running.items()}
        return {sequence for sequence, state in kv.items() if state.resident}

    def hand_off(self, worker: Worker, leaving: list[int], *, wait: bool) -> None:
        worker.harness.memory.hand_off(leaving)
        for sequence in leaving:
            worker.leaving[sequence] = worker.running.pop(sequence)
        self.finish(worker, wait=wait)

    @rule(number=WORKERS, wait=st.booleans())
    def see_off(self, number: int, wait: bool) -> None:
        self.finish(self.workers[number], wait=wait)

    def finish(self, worker: Worker, *, wait: bool) -> None:
        for done in worker.harness.memory.hand_offs.finish(wait=wait):
            model = worker.leaving.pop(done.sequence)
            if done.place.num_tokens:
                worker.held[done.sequence] = done.place
                self.places[done.sequence] = (model, worker, done.place)
        assert not (wait and worker.leaving)

    @rule(
        numbers=st.permutations(range(3)),
        sequence=SEQUENCES,
        model=st.sampled_from("ab"),
        tokens=st.integers(1, 60),
        early=st.sampled_from(["", "", "", "release", "cancel", "death"]),
        at_once=st.booleans(),
    )
    def move(
        self,
        numbers: list[int],
        sequence: int,
        model: str,
        tokens: int,
        early: str,
        at_once: bool,
    ) -> None:
        """From one worker to the next, which may find that the KV is gone."""
        source, target, _ = (self.workers[number] for number in numbers)
        self.start(numbers[0], sequence, model, tokens, leaves=True, wait=True)
        if sequence in source.running and sequence in self.resident(source):
            self.hand_off(source, [sequence], wait=True)
        if early == "release":
            self.release(numbers[0], sequence)
        elif early:
            self.end(numbers[0], sequence, early)
        if early:
            self.start(numbers[0], sequence, model, tokens, leaves=False, wait=False)
        if sequence in self.places and sequence not in target.harness.memory:
            self.receive(target, sequence, at_once=at_once)

    def receive(self, worker: Worker, sequence: int, *, at_once: bool) -> None:
        model, source, place = self.places[sequence]
        worker.harness.memory.add_sequence(sequence, model, place)
        worker.running[sequence] = model
        worker.coming[sequence] = (source, place)
        if at_once:
            self.turn(worker, model, room=20)

    @rule(number=WORKERS, sequence=SEQUENCES)
    def release(self, number: int, sequence: int) -> None:
        worker = self.workers[number]
        worker.harness.memory.hand_offs.release([sequence])
        worker.held.pop(sequence, None)

    @rule(
        number=WORKERS,
        sequence=SEQUENCES,
        trouble=st.sampled_from([*["cancel"] * 6, "stream", "death"]),
    )
    def end(self, number: int, sequence: int, trouble: str) -> None:
        worker = self.workers[number]
        memory = worker.harness.memory
        if trouble == "death":
            self.die(number)
            return
        ending = [sequence] if trouble == "cancel" else list(range(1, 6))
        for ended in ending:
            if ended in memory:
                memory.free(ended)
            for known in (worker.running, worker.leaving, worker.held, worker.coming):
                known.pop(ended, None)  # type: ignore[attr-defined]

    def die(self, number: int) -> None:
        """As the others see it: locks are gone, and nothing is written any more."""
        worker = self.workers[number]
        slabs = worker.harness.slabs
        nowhere = os.memfd_create("nowhere")
        for fd in (slabs._memory.fd, *slabs._stamps._fds.values()):
            os.dup2(nowhere, fd)
        os.close(nowhere)
        worker.dead = True
        self.workers[number] = self.new_worker(number)

    def note(self, worker: Worker) -> None:
        """Check what has become of sequences that came from elsewhere."""
        worker.harness.memory.take_lost()
        for imported in worker.harness.memory.take_imports():
            source, place = worker.coming.pop(imported.sequence)
            if source.held.get(imported.sequence) == place and not source.dead:
                assert imported.num_tokens == place.num_tokens
            elif not source.dead:
                assert imported.num_tokens == 0
            else:  # until somebody else needs the slab
                assert imported.num_tokens in (0, place.num_tokens)

    @invariant()
    def everything_has_one_owner(self) -> None:
        if not hasattr(self, "workers"):
            return
        owned: set[int] = set()
        for worker in self.workers:
            memory = worker.harness.memory
            memory.audit()
            known = worker.running.keys() | worker.leaving.keys() | worker.held.keys()
            assert memory.num_sequences == len(known)
            assert owned.isdisjoint(worker.harness.slabs.owned)
            owned |= worker.harness.slabs.owned

    @invariant()
    def held_kv_is_what_was_handed_off(self) -> None:
        if not hasattr(self, "workers"):
            return
        for worker in self.workers:
            for sequence, place in worker.held.items():
                content = worker.harness.models[self.model_of(place)].kv._content
                assert worker.harness.slabs.holds(place, content), sequence

    @staticmethod
    def model_of(place: KvPlace) -> str:
        return next(name for name, s in SHAPES.items() if s.block_nbytes == place.block_nbytes)

    def teardown(self) -> None:
        if not hasattr(self, "every"):
            return
        for worker in self.every:
            worker.harness.close()
        self.folder.cleanup()


TestHandOffMachine = HandOffMachine.TestCase
TestHandOffMachine.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
