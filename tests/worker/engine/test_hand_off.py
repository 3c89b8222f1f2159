"""Two engines of one node: one takes sequences to their first token, the other goes on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from aegaeon_worker.engine import commands, events
from aegaeon_worker.engine.events import FinishReason
from aegaeon_worker.kv.hand_offs import HandedOff
from aegaeon_worker.kv.imports import Imported
from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.kv.shape import BLOCK_TOKENS
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.reference import reference_tokens
from tests.worker.models.tiny import VOCAB_SIZE, make_checkpoint

pytestmark = pytest.mark.usefixtures("pace")

NEW_TOKENS = 20
MIB = 1 << 20
#: Includes prompts longer than a sliding window, and one longer than a prefill chunk.
LENGTHS = (1, 15, 16, 17, 90, 600)


@dataclass(frozen=True)
class Case:
    """A checkpoint with prompts and what `transformers` makes of them."""

    name: str
    path: Path
    prompts: list[list[int]]
    expected: list[list[int]]


@pytest.fixture(scope="module", params=["llama", "gemma3_text"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    path = make_checkpoint(request.param, tmp_path_factory.mktemp("checkpoints") / request.param, 3)
    rng = random.Random(5)
    prompts = [[rng.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]
    return Case(request.param, path, prompts, reference_tokens(path, prompts, NEW_TOKENS))


@dataclass(frozen=True)
class Pair:
    """A prefill and a decode engine."""

    case: Case
    prefill: EngineHarness
    decode: EngineHarness

    def start(self, new_tokens: int = NEW_TOKENS) -> list[int]:
        """All prompts at the prefill engine, in a turn of their own."""
        handles = [
            self.prefill.add(self.case.name, prompt, new_tokens) for prompt in self.case.prompts
        ]
        self.prefill.turn(self.case.name, handles, hands_off=True)
        return handles

    def place(self, handle: int) -> KvPlace:
        self.prefill.wait_ended([handle])
        place = self.prefill.outputs[handle].place
        assert place is not None
        return place

    def go_on(self, prefilled: int, index: int, place: KvPlace | None) -> int:
        """Make a prompt that has its first token known to the decode engine."""
        generated = self.prefill.tokens(prefilled)
        assert generated == self.case.expected[index][:1]
        prompt = self.case.prompts[index]
        return self.decode.add(self.case.name, prompt, NEW_TOKENS, generated=generated, kv=place)

    def check(self, handle: int, index: int) -> None:
        assert self.decode.tokens(handle) == self.case.expected[index][1:]
        assert self.decode.outputs[handle].finish is FinishReason.LENGTH

    def imported(self) -> dict[int, Imported]:
        """Told by the decode engine so far, by handle, each once."""
        told = [event for event in self.decode.log if isinstance(event, Imported)]
        by_handle = {event.sequence: event for event in told}
        assert len(by_handle) == len(told)
        return by_handle


@pytest.fixture
def pair(case: Case, tmp_path: Path) -> Iterator[Pair]:
    shm_dir = tmp_path / "shm"
    shm_dir.mkdir()
    with (
        EngineHarness(shm_dir, worker_index=0) as prefill,
        EngineHarness(shm_dir, worker_index=1) as decode,
    ):
        for engine in (prefill, decode):
            engine.load(case.path)
        yield Pair(case, prefill, decode)
    assert list(shm_dir.glob("aegaeon-*")) == [], "the workers left files behind"


def wait_empty(engine: EngineHarness) -> None:
    """No sequence and no KV is left, which the engine tells at the next occasion."""
    turn = engine.turn(next(iter(engine.parts.status.models)).spec.name, [])
    while engine.wait_for(events.TurnEnded).turn_id != turn:
        pass
    usage = engine.wait_for(events.MemoryUsage)
    assert (usage.sequences, usage.device_kv_bytes, usage.host_kv_bytes) == (0, 0, 0)


def test_handed_off_sequences_go_on_as_if_they_had_never_moved(pair: Pair) -> None:
    prefilled = pair.start()
    handles = [
        pair.go_on(handle, index, pair.place(handle)) for index, handle in enumerate(prefilled)
    ]
    pair.decode.turn(pair.case.name, handles)
    pair.decode.wait_ended(handles)
    imported = pair.imported()
    for index, handle in enumerate(handles):
        pair.check(handle, index)
        assert imported[handle].num_tokens == len(pair.case.prompts[index])
        first = next(
            event
            for event in pair.decode.log
            if isinstance(event, events.StepBatch) and handle in event.handles
        )
        assert pair.decode.log.index(imported[handle]) < pair.decode.log.index(first)
    started = next(event for event in pair.decode.log if isinstance(event, events.TurnStarted))
    assert started.kv_bytes == sum(event.nbytes for event in imported.values()) > 0
    steps = [event for event in pair.decode.log if isinstance(event, events.StepBatch)]
    assert sum(step.prefill_tokens for step in steps) == 0
    pair.prefill.send(commands.ReleaseSequences(prefilled))
    wait_empty(pair.prefill)
    wait_empty(pair.decode)


def test_a_sequence_leaves_after_its_first_token_and_the_others_go_on(pair: Pair) -> None:
    prefilled = pair.start()
    pair.prefill.wait_ended(prefilled)
    log = pair.prefill.log
    for handle in prefilled:
        assert len(pair.prefill.outputs[handle].tokens) == 1
        token = next(
            event
            for event in log
            if isinstance(event, events.StepBatch) and handle in event.handles
        )
        left = next(
            event for event in log if isinstance(event, HandedOff) and event.sequence == handle
        )
        assert log.index(token) < log.index(left)
    long = max(range(len(LENGTHS)), key=LENGTHS.__getitem__)
    last = [event.sequence for event in log if isinstance(event, HandedOff)][-1]
    assert last == prefilled[long]


def test_sequences_that_end_with_their_first_token_are_not_handed_off(pair: Pair) -> None:
    handles = pair.start(new_tokens=1)
    pair.prefill.wait_ended(handles)
    for handle in handles:
        assert pair.prefill.outputs[handle].finish is FinishReason.LENGTH
    wait_empty(pair.prefill)
    assert not any(isinstance(event, HandedOff) for event in pair.prefill.log)


def test_handed_off_sequences_take_part_in_no_turn(pair: Pair) -> None:
    prefilled = pair.start()
    pair.prefill.wait_ended(prefilled)
    turn = pair.prefill.turn(pair.case.name, prefilled)
    while (ended := pair.prefill.wait_for(events.TurnEnded)).turn_id != turn:
        pass
    assert ended.steps == 0


@pytest.mark.parametrize("end", ["release", "cancel", "stream"])
def test_kv_that_was_freed_before_it_was_copied_is_computed_again(pair: Pair, end: str) -> None:
    prefilled = pair.start()
    places = [pair.place(handle) for handle in prefilled]
    handles = [pair.go_on(handle, index, places[index]) for index, handle in enumerate(prefilled)]
    logged = len(pair.prefill.log)
    if end == "release":
        pair.prefill.send(commands.ReleaseSequences(prefilled))
    elif end == "cancel":
        pair.prefill.send(commands.CancelSequences(prefilled))
    else:
        pair.prefill.send(commands.Attach(pair.prefill._inbox.put))
    wait_empty(pair.prefill)
    told = pair.prefill.log[logged:]
    assert not any(isinstance(event, events.StepBatch) for event in told), "these had ended"
    # Others have the very blocks now.
    pair.place(pair.start()[-1])
    pair.decode.turn(pair.case.name, handles)
    pair.decode.wait_ended(handles)
    imported = pair.imported()
    for index, handle in enumerate(handles):
        # Where all blocks are full they may still be kept for others, and are as good as before.
        full = places[index].num_tokens % BLOCK_TOKENS == 0
        assert imported[handle].num_tokens in (0, places[index].num_tokens if full else 0)
        pair.check(handle, index)


def test_kv_of_fewer_tokens_than_there_are_is_completed(pair: Pair) -> None:
    prefilled = pair.start()
    place = pair.place(prefilled[4])
    expected = pair.case.expected[4]
    handle = pair.decode.add(
        pair.case.name, pair.case.prompts[4], NEW_TOKENS, generated=expected[:9], kv=place
    )
    pair.decode.turn(pair.case.name, [handle])
    pair.decode.wait_ended([handle])
    assert pair.decode.tokens(handle) == expected[9:]
    assert pair.imported()[handle].num_tokens == LENGTHS[4]
    steps = [event for event in pair.decode.log if isinstance(event, events.StepBatch)]
    assert steps[0].prefill_tokens == 9


def test_an_idle_worker_says_what_it_holds_for_others(pair: Pair) -> None:
    prefilled = pair.start()
    pair.prefill.wait_ended(prefilled)
    pair.prefill.wait_for(events.TurnEnded)
    held = pair.prefill.wait_for(events.MemoryUsage)
    assert held == pair.prefill.parts.status.memory
    assert (held.sequences, held.device_kv_bytes) == (len(prefilled), 0)
    assert held.host_kv_bytes > 0
    pair.prefill.send(commands.ReleaseSequences(prefilled[:-1]))
    assert pair.prefill.wait_for(events.MemoryUsage).sequences == 1
    pair.prefill.send(commands.CancelSequences(prefilled))
    usage = pair.prefill.wait_for(events.MemoryUsage)
    assert (usage.sequences, usage.host_kv_bytes) == (0, 0)


def test_a_sequence_cancelled_before_its_turn_tells_nothing_of_its_kv(pair: Pair) -> None:
    prefilled = pair.start()
    handle = pair.go_on(prefilled[2], 2, pair.place(prefilled[2]))
    pair.decode.send(commands.CancelSequences([handle]))
    pair.decode.wait_ended([handle])
    wait_empty(pair.decode)
    assert pair.imported() == {}


def test_kv_of_as_many_tokens_as_there_are_fails_the_sequence_alone(pair: Pair) -> None:
    prefilled = pair.start()
    place = pair.place(prefilled[3])
    wrong = pair.go_on(prefilled[3], 3, replace(place, num_tokens=place.num_tokens + 1))
    right = pair.go_on(prefilled[3], 3, place)
    pair.decode.turn(pair.case.name, [wrong, right])
    pair.decode.wait_ended([wrong, right])
    assert "the last of which must be without" in str(pair.decode.outputs[wrong].error)
    pair.check(right, 3)


def test_a_model_with_handed_off_sequences_can_be_unloaded(pair: Pair) -> None:
    prefilled = pair.start()
    handle = pair.go_on(prefilled[4], 4, pair.place(prefilled[4]))
    pair.prefill.wait_ended(prefilled)
    pair.prefill.send(commands.UnloadModel(pair.case.name))
    assert pair.prefill.wait_for(events.ModelUnloaded).model == pair.case.name
    assert pair.prefill.wait_for(events.MemoryUsage).sequences == 0
    pair.decode.turn(pair.case.name, [handle])
    pair.decode.wait_ended([handle])
    pair.check(handle, 4)
    assert pair.imported()[handle].num_tokens == 0


def test_sequences_go_on_though_the_slabs_have_no_room(case: Case, tmp_path: Path) -> None:
    with (
        EngineHarness(tmp_path, cpu_num_slabs=1, cpu_slab_bytes=64 << 10) as prefill,
        EngineHarness(tmp_path, cpu_num_slabs=1, cpu_slab_bytes=64 << 10, worker_index=1) as decode,
    ):
        for engine in (prefill, decode):
            engine.load(case.path)
        pair = Pair(case, prefill, decode)
        prefilled = pair.start()
        places = [pair.place(handle) for handle in prefilled]
        assert places[-1].num_tokens == 0
        handles = [
            pair.go_on(handle, index, places[index]) for index, handle in enumerate(prefilled)
        ]
        decode.turn(case.name, handles)
        decode.wait_ended(handles)
        for index, handle in enumerate(handles):
            pair.check(handle, index)
