"""KV that one worker of a node leaves in the host slabs and another goes on with."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aegaeon_worker.device.cuda import CudaDevice
from aegaeon_worker.device.interface import VirtualRange
from aegaeon_worker.kv.place import NOWHERE, BlockRun, KvPlace
from aegaeon_worker.kv.shape import BLOCK_TOKENS, KvShape
from tests.worker.device.fake_cuda import FakeCuda
from tests.worker.device.makers import KINDS
from tests.worker.kv.memory_harness import (
    CHUNK_TOKENS,
    ODD_SHAPE,
    SHAPE,
    WEIGHT_CHUNKS,
    Harness,
    MakeHarness,
)

#: The same bytes per block as SHAPE, laid out in another way.
TURNED_SHAPE = KvShape(num_layers=4, num_kv_heads=1, head_dim=1024, dtype=torch.float32)


@pytest.fixture(params=KINDS)
def join(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeHarness]:
    """Makes workers of one node."""
    made = []

    def build(**options: int) -> Harness:
        shapes = {"a": SHAPE, "b": ODD_SHAPE}
        made.append(Harness(shapes, kind=request.param, slab_dir=tmp_path, **options))
        return made[-1]

    yield build
    for harness in made:
        harness.memory.audit()
        harness.close()


def test_kv_arrives_as_it_left_and_is_free_at_both_ends_afterwards(join: MakeHarness) -> None:
    source, target = join(), join()
    source.start(1, "b", 3 * BLOCK_TOKENS + 5)
    place = source.hand_off(1)
    assert place.num_tokens == 3 * BLOCK_TOKENS + 5
    assert source.memory.device_usage().kv == 0
    imported = target.receive(1, "b", place)
    assert imported.num_tokens == place.num_tokens
    assert imported.nbytes == 4 * ODD_SHAPE.block_nbytes
    source.memory.hand_offs.release([1])
    assert (source.memory.num_sequences, source.slabs.owned) == (0, frozenset())
    target.append(1, "b", 20)
    target.memory.preempt(1)
    target.memory.activate("b", [(1, target.memory.stored_tokens(1))])
    target.check_kv(1, "b")
    target.memory.free(1)
    assert (target.memory.num_sequences, target.slabs.owned) == (0, frozenset())


def test_many_sequences_leave_and_arrive_together(join: MakeHarness) -> None:
    source, target = join(num_chunks=7), join(num_chunks=7)
    for sequence in (1, 2, 3):
        source.start(sequence, "a", 10 + 15 * sequence)
    source.memory.hand_off([3, 1, 2])
    done = source.memory.hand_offs.finish(wait=True)
    assert [hand_off.sequence for hand_off in done] == [3, 1, 2]
    for hand_off in done:
        target.memory.add_sequence(hand_off.sequence, "a", hand_off.place)
    target.memory.activate("a", [(sequence, 70) for sequence in (1, 2, 3)])
    assert [i.num_tokens for i in target.memory.take_imports()] == [25, 40, 55]
    for sequence in (1, 2, 3):
        target.check_kv(sequence, "a")


def test_kv_may_join_a_running_turn(join: MakeHarness) -> None:
    source, target = join(), join()
    source.start(1, "a", 20)
    target.start(2, "a", 20)
    target.memory.add_sequence(1, "a", source.hand_off(1))
    assert target.memory.grow(1, 21)
    assert [i.num_tokens for i in target.memory.take_imports()] == [20]
    target.check_kv(1, "a")


def test_only_what_is_held_may_be_released(join: MakeHarness) -> None:
    source = join()
    source.start(1, "a", 20)
    source.start(2, "a", 20)
    place = source.hand_off(2)
    source.memory.hand_offs.release([1, 2, 3])
    assert place.num_tokens == 20
    assert source.memory.stored_tokens(1) == 20
    assert 2 not in source.memory


@pytest.mark.parametrize("reuse", [False, True])
def test_kv_that_was_freed_is_computed_again_whoever_has_its_blocks_now(
    join: MakeHarness, reuse: bool
) -> None:
    source, target = join(), join()
    source.start(2, "a", 20)
    source.memory.preempt(2)  # keeps the slab
    source.start(1, "a", 20)
    place = source.hand_off(1)
    source.memory.free(1)
    if reuse:
        source.start(3, "a", 20)
        assert source.hand_off(3).runs[0].first_block == place.runs[0].first_block
    assert target.receive(1, "a", place).num_tokens == 0
    target.append(1, "a", 21)
    target.check_kv(1, "a")


def test_freeing_one_sequence_leaves_others_in_the_slab_as_they_are(join: MakeHarness) -> None:
    source, target = join(), join()
    places = {}
    for sequence in (1, 2):
        source.start(sequence, "a", 20)
        places[sequence] = source.hand_off(sequence)
    assert places[1].runs[0].slab == places[2].runs[0].slab
    source.memory.hand_offs.release([1])
    assert target.receive(2, "a", places[2]).num_tokens == 20


def test_kv_that_changes_hands_while_it_is_copied_is_not_used(
    join: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = join(), join()
    source.start(1, "a", 20)
    place = source.hand_off(1)
    real = target.device.copy_in

    def late(where: VirtualRange, offset: int, data: torch.Tensor) -> None:
        source.memory.free_all()
        real(where, offset, data)

    monkeypatch.setattr(target.device, "copy_in", late)
    target.memory.add_sequence(1, "a", place)
    target.memory.activate("a", [(1, 21)])
    assert [i.num_tokens for i in target.memory.take_imports()] == [0]
    assert target.memory.stored_tokens(1) == 0
    target.append(1, "a", 21)
    target.check_kv(1, "a")


def test_kv_of_other_weights_or_another_layout_is_not_taken(join: MakeHarness) -> None:
    source, target = join(), join()
    source.start(1, "a", 20)
    place = source.hand_off(1)
    assert target.receive(1, "b", place).num_tokens == 0
    target.add_model("turned", TURNED_SHAPE, fingerprint="a")
    assert TURNED_SHAPE.block_nbytes == SHAPE.block_nbytes
    assert target.receive(2, "turned", place).num_tokens == 0
    target.add_model("other", SHAPE, fingerprint="other weights")
    assert target.receive(3, "other", place).num_tokens == 0
    assert target.receive(4, "a", replace(place, num_tokens=40)).num_tokens == 0
    target.add_model("alias", SHAPE, fingerprint="a")
    target.memory.add_sequence(5, "alias", place)
    target.memory.activate("alias", [(5, 21)])
    assert [i.num_tokens for i in target.memory.take_imports()] == [20]


@pytest.mark.parametrize(
    "run", [BlockRun(99, 1, 0, 2), BlockRun(0, 1, 3, 2), BlockRun(0, 1, 0, 2), BlockRun(0, 0, 0, 2)]
)
def test_places_that_nobody_published_are_not_touched(join: MakeHarness, run: BlockRun) -> None:
    source, target = join(), join()
    source.start(1, "a", 20)
    place = replace(source.hand_off(1), runs=(run,))
    assert target.receive(1, "a", place).num_tokens == 0


def test_held_kv_is_not_given_up_for_lack_of_room(join: MakeHarness) -> None:
    source, target = join(num_slabs=1), join(num_slabs=1)
    source.start(1, "a", CHUNK_TOKENS)
    source.start(2, "a", CHUNK_TOKENS)
    place = source.hand_off(2)
    source.memory.preempt(1)
    assert source.memory.take_lost() == [1]
    assert target.receive(2, "a", place).num_tokens == CHUNK_TOKENS


def test_a_leaving_sequence_finds_room_at_the_expense_of_younger_ones(join: MakeHarness) -> None:
    source = join(num_slabs=1)
    source.start(1, "a", CHUNK_TOKENS)
    source.start(2, "a", CHUNK_TOKENS)
    source.memory.preempt(2)
    assert source.hand_off(1).num_tokens == CHUNK_TOKENS
    assert source.memory.take_lost() == [2]


def test_without_room_a_sequence_leaves_without_kv_and_is_forgotten(join: MakeHarness) -> None:
    other, source = join(num_slabs=1), join(num_slabs=1)
    other.start(1, "a", 20)
    other.memory.preempt(1)
    source.start(2, "a", 20)
    assert source.hand_off(2) == NOWHERE
    assert 2 not in source.memory
    assert source.memory.device_usage().kv == 0


def test_a_full_file_system_reads_as_no_room(
    join: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    source = join()
    source.start(1, "a", 20)
    monkeypatch.setattr(os, "pwrite", full)
    assert source.hand_off(1) == NOWHERE
    monkeypatch.undo()
    assert source.slabs.owned == frozenset()


def test_kv_waits_for_its_turn_without_being_swapped_or_lost(join: MakeHarness) -> None:
    source, target = join(), join(num_chunks=WEIGHT_CHUNKS + 1)
    source.start(1, "a", 20)
    target.memory.add_sequence(1, "a", source.hand_off(1))
    target.memory.preempt(1)
    target.start(2, "b", 20)
    assert target.memory.take_lost() == []
    assert target.memory.stored_tokens(1) == 20
    target.memory.activate("a", [(1, 21)])
    assert [i.num_tokens for i in target.memory.take_imports()] == [20]
    target.check_kv(1, "a")


def test_nothing_is_told_of_a_sequence_that_has_ended(join: MakeHarness) -> None:
    source, target = join(), join()
    source.start(1, "a", 20)
    source.start(2, "a", 20)
    place = source.hand_off(1)
    source.memory.hand_off([2])
    source.memory.free(2)
    assert source.memory.hand_offs.finish(wait=True) == []
    target.memory.add_sequence(1, "b", place)
    target.memory.free(1)
    assert target.memory.take_imports() == []


@pytest.fixture
def lazy(tmp_path: Path) -> Iterator[tuple[Harness, Harness, FakeCuda]]:
    harness = Harness({"a": SHAPE, "b": ODD_SHAPE}, kind="fake", slab_dir=tmp_path)
    assert isinstance(harness.device, CudaDevice)
    driver = harness.device._driver
    assert isinstance(driver, FakeCuda)
    target = Harness({"a": SHAPE}, slab_dir=tmp_path)
    yield harness, target, driver
    for worker in (harness, target):
        worker.memory.audit()
        worker.close()


def test_the_next_step_goes_on_while_kv_leaves(lazy: tuple[Harness, Harness, FakeCuda]) -> None:
    harness, target, driver = lazy
    harness.start(1, "a", 20)
    harness.start(2, "a", 20)
    driver.run_all()
    before = driver.calls["cuStreamSynchronize"]
    harness.memory.hand_off([1])
    assert harness.memory.hand_offs.finish(wait=False) == []
    assert harness.memory.grow(2, 20 + BLOCK_TOKENS)
    harness.append(2, "a", BLOCK_TOKENS)
    assert harness.memory.hand_offs.under_way
    assert driver.calls["cuStreamSynchronize"] == before
    driver.run_all()
    [done] = harness.memory.hand_offs.finish(wait=False)
    assert target.receive(1, "a", done.place).num_tokens == 20


def test_blocks_of_a_leaving_sequence_may_be_taken_while_it_is_copied(
    lazy: tuple[Harness, Harness, FakeCuda],
) -> None:
    harness, target, _ = lazy
    harness.start(1, "a", CHUNK_TOKENS)
    harness.memory.hand_off([1])
    for sequence in (2, 3, 4):
        harness.start(sequence, "a", CHUNK_TOKENS)
    [done] = harness.memory.hand_offs.finish(wait=False)
    assert target.receive(1, "a", done.place).num_tokens == CHUNK_TOKENS


def test_foreign_kv_is_looked_at_again_only_when_its_copies_are_done(
    lazy: tuple[Harness, Harness, FakeCuda], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, source, driver = lazy
    source.start(1, "a", 20)
    place = source.hand_off(1)
    real = target.slabs.holds
    synchronised = []

    def look(place: KvPlace, content: int) -> bool:
        synchronised.append(driver.calls["cuStreamSynchronize"])
        return real(place, content)

    monkeypatch.setattr(target.slabs, "holds", look)
    assert target.receive(1, "a", place).num_tokens == 20
    before, after = synchronised
    assert after > before
