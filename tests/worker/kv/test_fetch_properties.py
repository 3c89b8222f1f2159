"""KV that comes from another node, in any pieces and with any interruption."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from aegaeon.errors import NotFoundError
from aegaeon_worker.kv.arrival import Arrival
from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.kv.shape import BLOCK_TOKENS
from aegaeon_worker.kv.slab_reader import SlabReader
from tests.worker.kv.memory_harness import ODD_SHAPE, SHAPE, WEIGHT_CHUNKS, Harness

SHAPES = {"a": SHAPE, "b": ODD_SHAPE}
SEQUENCES = st.integers(1, 6)


@dataclass
class Sent:
    """A sequence on its way to the target, or there."""

    model: str
    place: KvPlace
    fetched: int | None = None
    #: A turn has run it.
    ran: bool = False


@dataclass
class Wire:
    """Carries what it is told to, when it is told to."""

    under_way: list[Arrival] = field(default_factory=list)

    def carry(self, arrival: Arrival) -> None:
        self.under_way.append(arrival)


class FetchMachine(RuleBasedStateMachine):
    """Two nodes with slabs of their own: what one of them has computed goes on at the other."""

    @initialize(
        source_slabs=st.integers(3, 7),
        target_slabs=st.integers(1, 6),
        kinds=st.permutations(["cpu", "fake"]),
    )
    def start_workers(self, source_slabs: int, target_slabs: int, kinds: list[str]) -> None:
        self.wire = Wire()
        chunks = WEIGHT_CHUNKS + 3
        self.source = Harness(SHAPES, num_chunks=chunks, num_slabs=source_slabs, kind=kinds[0])
        self.target = Harness(
            SHAPES, num_chunks=chunks, num_slabs=target_slabs, kind=kinds[1], carry=self.wire.carry
        )
        self.reader: SlabReader = self.source.slabs.reader()
        self.sent: dict[int, Sent] = {}
        self.dropped = 0

    @rule(sequence=SEQUENCES, model=st.sampled_from("ab"), tokens=st.integers(1, 60))
    def send(self, sequence: int, model: str, tokens: int) -> None:
        if sequence in self.source.memory or sequence in self.target.memory:
            return
        self.source.start(sequence, model, tokens)
        place = self.source.hand_off(sequence)
        self.source.memory.take_lost()
        if not place.num_tokens:
            return
        self.sent[sequence] = Sent(model, place)
        self.target.memory.add_sequence(sequence, model, replace(place, address="elsewhere"))
        self.note()

    @precondition(lambda self: self.wire.under_way)
    @rule(data=st.data(), nbytes=st.integers(1, 3 << 20))
    def carry_some(self, data: st.DataObject, nbytes: int) -> None:
        """Bytes of a transfer, as the source has them, cut anywhere."""
        self.write(data.draw(st.sampled_from(self.wire.under_way)), nbytes)

    def write(self, arrival: Arrival, nbytes: int) -> bool:
        if arrival.complete:
            return False
        try:
            piece = self.reader.read(arrival.place, arrival.content, arrival.received)
        except NotFoundError:
            return False
        assert self.sent_as(arrival) or arrival.closed
        return arrival.write(piece[:nbytes])

    def sent_as(self, arrival: Arrival) -> bool:
        """Whether the source still holds what the arrival is to be."""
        sent = self.sent.get(arrival.sequence)
        return sent is not None and replace(sent.place, address="elsewhere") == arrival.place

    @precondition(lambda self: self.wire.under_way)
    @rule(data=st.data(), whole=st.booleans())
    def end_a_transfer(self, data: st.DataObject, whole: bool) -> None:
        arrival = data.draw(st.sampled_from(self.wire.under_way))
        while whole and self.write(arrival, 1 << 20):
            pass
        self.wire.under_way.remove(arrival)
        self.target.memory.fetches.ended(arrival, 5, 0)
        self.note()

    @rule(sequence=SEQUENCES, room=st.integers(1, 30))
    def run(self, sequence: int, room: int) -> None:
        """A turn at the target, which waits for no transfer."""
        sent = self.sent.get(sequence)
        memory = self.target.memory
        if sent is None or sequence not in memory:
            return
        wanted = memory.stored_tokens(sequence) + room
        if wanted > self.target.models[sent.model].max_tokens:
            return
        assert memory.activate(sent.model, [(sequence, wanted)]) == [sequence]
        imported = {i.sequence: i.num_tokens for i in memory.take_imports()}
        assert (sequence in imported) == (not sent.ran)
        stored = memory.stored_tokens(sequence)
        assert imported.get(sequence, stored) == stored
        sent.ran = True
        memory.take_lost()
        self.target.check_kv(sequence, sent.model)
        self.target.append(sequence, sent.model, room // 2)
        self.note()

    @rule(sequence=SEQUENCES)
    def release(self, sequence: int) -> None:
        """The source lets go, at whatever moment."""
        self.source.memory.hand_offs.release([sequence])

    @rule(sequence=SEQUENCES)
    def cancel(self, sequence: int) -> None:
        if sequence in self.target.memory:
            self.target.memory.free(sequence)
            del self.sent[sequence]

    @rule()
    def lose_the_scheduler(self) -> None:
        """The next one gives other sequences the same numbers."""
        self.target.memory.free_all()
        self.source.memory.free_all()
        self.sent.clear()

    def note(self) -> None:
        """Every fetch is answered once, with no more than was asked for and no less than came."""
        for fetched in self.target.memory.fetches.take_outcomes():
            sent = self.sent[fetched.sequence]
            assert sent.fetched is None
            sent.fetched = fetched.num_tokens
            blocks = fetched.nbytes // sent.place.block_nbytes
            assert fetched.num_tokens in (0, min(blocks * BLOCK_TOKENS, sent.place.num_tokens))
            if not sent.ran:
                assert self.target.memory.stored_tokens(fetched.sequence) == fetched.num_tokens
        self.target.memory.take_lost()

    @invariant()
    def both_ledgers_are_balanced(self) -> None:
        if not hasattr(self, "wire"):
            return
        self.source.memory.audit()
        self.target.memory.audit()

    @invariant()
    def what_is_freed_takes_no_bytes(self) -> None:
        if not hasattr(self, "wire"):
            return
        for arrival in self.wire.under_way:
            if arrival.sequence not in self.target.memory:
                assert arrival.closed
                assert not arrival.write(b"x")

    def teardown(self) -> None:
        if not hasattr(self, "wire"):
            return
        while self.wire.under_way:  # the end of one may begin another
            arrival = self.wire.under_way.pop()
            self.target.memory.fetches.ended(arrival, 0, 1)
        self.note()
        assert all(sent.fetched is not None or sent.ran for sent in self.sent.values())
        self.reader.close()
        self.source.close()
        self.target.close()


TestFetchMachine = FetchMachine.TestCase
TestFetchMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_a_worker_that_hangs_holds_up_its_own_transfers_alone() -> None:
    wire = Wire()
    source = Harness(SHAPES, num_chunks=WEIGHT_CHUNKS + 3)
    target = Harness(SHAPES, num_chunks=WEIGHT_CHUNKS + 3, carry=wire.carry)
    for sequence in range(1, 7):
        source.start(sequence, "a", 5)
        place = source.hand_off(sequence)
        address = "hangs" if sequence < 5 else "well"
        target.memory.add_sequence(sequence, "a", replace(place, address=address))
    assert [arrival.sequence for arrival in wire.under_way] == [1, 2, 5, 6]
    target.memory.free(3)
    target.memory.fetches.ended(wire.under_way[0], 0, 1)
    assert [arrival.sequence for arrival in wire.under_way] == [1, 2, 5, 6, 4]
    for harness in (source, target):
        harness.close()
