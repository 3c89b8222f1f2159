"""KV that goes from one worker's device to another's, in two workers of one process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from aegaeon_worker.device.sharing import DeviceSharing
from aegaeon_worker.kv.fetches import Fetched
from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.kv.shape import BLOCK_TOKENS
from aegaeon_worker.peers.lender import LenderGone, PullAnswered
from aegaeon_worker.peers.lending import SaveOffer
from tests.worker.device.makers import KINDS
from tests.worker.kv.memory_harness import (
    CHUNK_TOKENS,
    ODD_SHAPE,
    SHAPE,
    WEIGHT_CHUNKS,
    Harness,
)
from tests.worker.kv.other_worker import fetched, go_on

TOKENS = 3 * BLOCK_TOKENS + 5


class Node:
    """Workers that share a folder; what they leave behind is looked for at the end."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._folder = kind, folder
        self._made: list[Harness] = []
        self._descriptors = _descriptors()

    def join(self, *, lends: bool = False, **options: int) -> Harness:
        made = Harness(
            {"a": SHAPE, "b": ODD_SHAPE},
            kind=self._kind,
            slab_dir=self._folder,
            peers=(len(self._made), lends),
            **options,  # type: ignore[arg-type]
        )
        self._made.append(made)
        return made

    def leave(self, worker: Harness) -> None:
        """Stop a worker, and see that its books are balanced."""
        self._made.remove(worker)
        worker.memory.audit()
        worker.close()

    def close(self) -> None:
        for worker in list(self._made):
            self.leave(worker)
        assert [path.name for path in self._folder.glob("device-*")] == []
        more = {fd: name for fd, name in _descriptors().items() if fd not in self._descriptors}
        assert not more


def _descriptors() -> dict[str, str]:
    """Of this process, and what each is."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            found[path.name] = str(path.readlink())
    return found


@cache
def _used_once(kind: str) -> None:
    """What a driver opens when a process first uses it stays open."""
    with tempfile.TemporaryDirectory() as folder:
        node = Node(kind, Path(folder))
        source, target = node.join(lends=True), node.join()
        source.start(1, "a", TOKENS)
        target.memory.add_sequence(1, "a", offer(source, 1))
        assert fetched(target).num_tokens == TOKENS
        for worker in (source, target):
            node.leave(worker)


@pytest.fixture(params=KINDS)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    if request.param == "cuda":
        _used_once(request.param)
    made = Node(request.param, tmp_path)
    yield made
    made.close()


def offer(source: Harness, sequence: int) -> KvPlace:
    """Hand a sequence off on the device."""
    source.memory.hand_off([sequence], on_device=True)
    [done] = source.memory.hand_offs.finish(wait=False)
    assert (done.sequence, done.place.runs) == (sequence, ())
    assert done.place.offer
    return done.place


@pytest.mark.parametrize("model", ["a", "b"])
def test_kv_goes_from_device_to_device_and_is_free_at_both_ends_afterwards(
    node: Node, model: str
) -> None:
    source, target = node.join(lends=True), node.join()
    source.start(1, model, TOKENS)
    place = offer(source, 1)
    assert place.num_tokens == TOKENS
    target.memory.add_sequence(1, model, place)
    outcome = fetched(target)
    assert (outcome.num_tokens, outcome.refusal) == (TOKENS, "")
    assert outcome.nbytes == 4 * source.models[model].kv.shape.block_nbytes
    assert go_on(target, 1, model) == TOKENS
    assert (source.slabs.owned, target.slabs.owned) == (frozenset(), frozenset())
    source.memory.hand_offs.release([1])
    assert source.memory.num_sequences == 0
    assert source.memory.device_usage().kv == 0
    target.append(1, model, 20)
    target.memory.preempt(1)
    target.memory.activate(model, [(1, target.memory.stored_tokens(1))])
    target.check_kv(1, model)
    target.memory.free(1)


def test_many_sequences_go_at_once_and_their_chunks_are_lent_once(node: Node) -> None:
    source, target = node.join(lends=True, num_chunks=8), node.join(num_chunks=8)
    places = {}
    for sequence in (1, 2, 3):
        source.start(sequence, "b", 10 + 15 * sequence)
    source.memory.hand_off([3, 1, 2], on_device=True)
    for done in source.memory.hand_offs.finish(wait=False):
        places[done.sequence] = done.place
        target.memory.add_sequence(done.sequence, "b", done.place)
    outcomes: dict[int, Fetched] = {}
    while len(outcomes) < 3:
        target.memory.pulls.advance(wait=True)
        outcomes |= {o.sequence: o for o in target.memory.pulls.take_outcomes()}
        if len(outcomes) < 3:
            target.hear()
    assert [outcomes[s].num_tokens for s in (1, 2, 3)] == [25, 40, 55]
    for sequence in (1, 2, 3):
        go_on(target, sequence, "b")
    target.memory.add_sequence(4, "b", places[1])
    assert not target.inbox.qsize()  # nobody had to be asked again
    assert fetched(target).num_tokens == 25


def test_what_its_worker_had_to_evict_comes_from_the_slabs(node: Node) -> None:
    source, target = node.join(lends=True), node.join()
    source.start(1, "a", TOKENS)
    place = offer(source, 1)
    source.start(2, "b", CHUNK_TOKENS)  # needs the chunks that the offer lies in
    assert source.memory.hand_offs.under_way
    assert source.memory.hand_offs.finish(wait=True) == []
    target.memory.add_sequence(1, "a", place)
    outcome = fetched(target)
    assert (outcome.num_tokens, bool(outcome.nbytes)) == (0, False)
    assert go_on(target, 1, "a") == TOKENS
    source.memory.hand_offs.release([1])
    assert source.slabs.owned == frozenset()


def test_without_room_on_the_reading_device_it_comes_by_the_slabs(node: Node) -> None:
    source, target = node.join(lends=True), node.join(num_chunks=WEIGHT_CHUNKS + 2)
    target.start(9, "a", CHUNK_TOKENS)
    target.memory.activate("a", [(9, 2 * CHUNK_TOKENS)])
    source.start(1, "a", TOKENS)
    target.memory.add_sequence(1, "a", offer(source, 1))
    assert isinstance(target.hear(), PullAnswered)
    assert isinstance(source.hear(), SaveOffer)
    assert source.memory.hand_offs.finish(wait=True) == []
    outcome = fetched(target)
    assert (outcome.num_tokens, outcome.refusal) == (0, "no room on the device")
    target.memory.free(9)
    assert go_on(target, 1, "a") == TOKENS


def test_what_moved_while_it_was_copied_does_not_count(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = node.join(lends=True), node.join()
    source.start(1, "a", TOKENS)
    target.memory.add_sequence(1, "a", offer(source, 1))
    while not target.memory.pulls.under_way:
        target.hear()
    source.start(2, "b", CHUNK_TOKENS)
    source.memory.hand_offs.finish(wait=True)
    outcome = fetched(target)
    assert (outcome.num_tokens, outcome.refusal) == (0, "the other worker needed the room")
    assert go_on(target, 1, "a") == TOKENS


def test_a_sequence_that_ends_while_it_is_copied_gives_its_blocks_back(node: Node) -> None:
    source, target = node.join(lends=True), node.join()
    source.start(1, "a", TOKENS)
    target.memory.add_sequence(1, "a", offer(source, 1))
    while not target.memory.pulls.under_way:
        target.hear()
    target.memory.free(1)
    target.memory.pulls.advance(wait=True)
    assert target.memory.pulls.take_outcomes() == []
    target.memory.audit()
    assert target.memory.device_usage().kv == 0


def test_a_turn_that_does_not_wait_computes_the_sequence(node: Node) -> None:
    source, target = node.join(lends=True), node.join()
    source.start(1, "a", TOKENS)
    target.memory.add_sequence(1, "a", offer(source, 1))
    assert target.memory.activate("a", [(1, TOKENS)]) == [1]
    [imported] = target.memory.take_imports()
    assert (imported.num_tokens, target.memory.stored_tokens(1)) == (0, 0)
    target.append(1, "a", TOKENS)
    target.check_kv(1, "a")


def test_the_end_of_the_lender_costs_nothing_that_was_copied(node: Node) -> None:
    source, target = node.join(lends=True), node.join()
    source.start(1, "a", TOKENS)
    source.start(2, "a", TOKENS)
    first, second = offer(source, 1), offer(source, 2)
    target.memory.add_sequence(1, "a", first)
    assert fetched(target).num_tokens == TOKENS
    node.leave(source)
    assert isinstance(target.hear(), LenderGone)
    assert go_on(target, 1, "a") == TOKENS
    target.memory.add_sequence(2, "a", second)
    outcome = fetched(target)
    assert (outcome.num_tokens, bool(outcome.refusal)) == (0, True)


def test_kv_of_other_weights_is_refused(node: Node) -> None:
    source, target = node.join(lends=True), node.join()
    source.start(1, "a", TOKENS)
    place = offer(source, 1)
    target.memory.remove_model("a")
    target.add_model("a", SHAPE, fingerprint="other")
    target.memory.add_sequence(1, "a", place)
    outcome = fetched(target)
    assert (outcome.num_tokens, outcome.refusal) == (0, "other weights have computed it")


def test_a_device_that_cannot_be_read_is_not_and_the_slabs_are_the_way(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = node.join(lends=True), node.join()
    assert target.peers.borrowing is not None
    sharing: DeviceSharing = target.peers.borrowing.sharing
    monkeypatch.setattr(sharing, "readable", frozenset())
    source.start(1, "a", TOKENS)
    target.memory.add_sequence(1, "a", offer(source, 1))
    assert isinstance(source.hear(), SaveOffer)
    source.memory.hand_offs.finish(wait=True)
    outcome = fetched(target)
    assert "cannot read the memory of" in outcome.refusal
    assert go_on(target, 1, "a") == TOKENS


def test_memory_that_cannot_be_exported_goes_by_the_slabs(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aegaeon_worker.device.errors import DeviceMemoryError

    source, target = node.join(lends=True), node.join()
    assert source.peers.lending is not None

    def refuse(chunk: int) -> int:
        raise DeviceMemoryError(f"chunk {chunk} is not for you")

    monkeypatch.setattr(source.peers.lending._server, "_export", refuse)
    source.start(1, "a", TOKENS)
    target.memory.add_sequence(1, "a", offer(source, 1))
    assert isinstance(target.hear(), PullAnswered)
    assert isinstance(source.hear(), SaveOffer)
    source.memory.hand_offs.finish(wait=True)
    assert "is not for you" in fetched(target).refusal
    assert go_on(target, 1, "a") == TOKENS
