"""An engine goes on with KV of another node: whole, in part, too late, or not at all."""

from __future__ import annotations

import queue
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from aegaeon_worker.engine import commands
from aegaeon_worker.kv.arrival import Arrival
from aegaeon_worker.kv.fetches import Fetched
from aegaeon_worker.kv.imports import Imported
from aegaeon_worker.kv.shape import BLOCK_TOKENS, KvShape
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.reference import reference_tokens
from tests.worker.models.tiny import VOCAB_SIZE, make_checkpoint

pytestmark = pytest.mark.usefixtures("pace")

NEW_TOKENS = 12
LENGTHS = (5, 90, 300)


@dataclass
class Carrier:
    """Has what the engine wants to have fetched, and brings it when it is told to."""

    asked: queue.SimpleQueue[Arrival] = field(default_factory=queue.SimpleQueue)

    def carry(self, _: Callable[[commands.FetchEnded], None], arrival: Arrival) -> None:
        self.asked.put(arrival)


@dataclass(frozen=True)
class Apart:
    """A prefill engine, and a decode engine with shared memory of its own."""

    name: str
    prompts: list[list[int]]
    expected: list[list[int]]
    prefill: EngineHarness
    decode: EngineHarness
    carrier: Carrier

    def hand_off(self, index: int) -> int:
        """Take a prompt to its first token, and make it known to the decode engine."""
        handle = self.prefill.add(self.name, self.prompts[index], NEW_TOKENS)
        self.prefill.turn(self.name, [handle], hands_off=True)
        self.prefill.wait_ended([handle])
        place = self.prefill.outputs[handle].place
        assert place is not None
        return self.decode.add(
            self.name,
            self.prompts[index],
            NEW_TOKENS,
            generated=self.prefill.tokens(handle),
            kv=replace(place, address="elsewhere"),
            prefix_caching=False,
        )

    def bring(self, arrival: Arrival, nbytes: int) -> None:
        """Write so many bytes of it."""
        reader = self.prefill.parts.slab_reader
        while arrival.received < nbytes:
            piece = reader.read(arrival.place, arrival.content, arrival.received)
            if not arrival.write(piece[: nbytes - arrival.received]):
                return

    def end(self, arrival: Arrival) -> None:
        self.decode.send(commands.FetchEnded(arrival, 7, int(not arrival.complete)))

    def finish(self, handle: int, index: int) -> Imported:
        """Run it to its end, check its tokens; returns what was told of its KV."""
        self.decode.turn(self.name, [handle])
        self.decode.wait_ended([handle])
        assert self.decode.tokens(handle) == self.expected[index][1:]
        [imported] = [
            event
            for event in self.decode.log
            if isinstance(event, Imported) and event.sequence == handle
        ]
        return imported


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("checkpoints") / "llama", 3)


@pytest.fixture
def apart(checkpoint: Path, tmp_path: Path) -> Iterator[Apart]:
    rng = random.Random(5)
    prompts = [[rng.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]
    expected = reference_tokens(checkpoint, prompts, NEW_TOKENS)
    carrier = Carrier()
    for name in "ab":
        (tmp_path / name).mkdir()
    with (
        EngineHarness(tmp_path / "a") as prefill,
        EngineHarness(tmp_path / "b", carrier.carry) as decode,
    ):
        for engine in (prefill, decode):
            engine.load(checkpoint)
        yield Apart("llama", prompts, expected, prefill, decode, carrier)


@pytest.mark.parametrize("share", [0.0, 0.4, 0.99, 1.0])
def test_what_has_come_is_used_and_the_rest_is_computed(apart: Apart, share: float) -> None:
    for index, length in enumerate(LENGTHS):
        handle = apart.hand_off(index)
        arrival = apart.carrier.asked.get(timeout=20)
        apart.bring(arrival, int(arrival.nbytes * share))
        apart.end(arrival)
        fetched = apart.decode.wait_for(Fetched)
        blocks = int(KvShape.blocks_for(length) * share)
        assert fetched.sequence == handle
        assert fetched.num_tokens == min(blocks * BLOCK_TOKENS, length)
        assert fetched.interruptions == (share < 1)
        assert apart.finish(handle, index).num_tokens == fetched.num_tokens


def test_a_turn_does_not_wait_for_the_wire(apart: Apart) -> None:
    handle = apart.hand_off(1)
    arrival = apart.carrier.asked.get(timeout=20)
    apart.bring(arrival, arrival.nbytes // 2)
    assert apart.finish(handle, 1).num_tokens == 0
    assert arrival.closed
    apart.bring(arrival, arrival.nbytes)
    assert arrival.received == arrival.nbytes // 2
    apart.end(arrival)


def test_a_cancelled_sequence_takes_no_more_bytes_and_others_are_not_disturbed(
    apart: Apart,
) -> None:
    cancelled, other = apart.hand_off(2), apart.hand_off(1)
    first, second = (apart.carrier.asked.get(timeout=20) for _ in range(2))
    apart.bring(first, first.nbytes // 3)
    apart.decode.send(commands.CancelSequences([cancelled]))
    apart.decode.wait_ended([cancelled])
    assert first.closed
    apart.end(first)
    apart.bring(second, second.nbytes)
    apart.end(second)
    assert apart.decode.wait_for(Fetched).sequence == other
    assert apart.finish(other, 1).num_tokens == LENGTHS[1]
