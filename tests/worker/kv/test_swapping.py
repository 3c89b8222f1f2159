from __future__ import annotations

import pytest
import torch

from aegaeon_worker.device.interface import VirtualRange
from aegaeon_worker.kv.errors import SequenceNotResident
from aegaeon_worker.kv.shape import BLOCK_TOKENS
from tests.worker.kv.memory_harness import (
    CHUNK_TOKENS,
    SHAPE,
    WEIGHT_CHUNKS,
    Harness,
    MakeHarness,
)


def copied_out(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each later copy to the host."""
    sizes: list[int] = []
    real = harness.device.copy_out

    def count(source: VirtualRange, offset: int, target: torch.Tensor) -> None:
        sizes.append(target.nbytes)
        real(source, offset, target)

    monkeypatch.setattr(harness.device, "copy_out", count)
    return sizes


def test_a_clean_copy_is_not_written_again_and_a_grown_one_only_at_its_end(
    make: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = make()
    harness.start(1, "a", 3 * BLOCK_TOKENS + 5)
    sizes = copied_out(harness, monkeypatch)
    harness.memory.preempt(1)
    assert sum(sizes) == 4 * SHAPE.block_nbytes
    sizes.clear()
    harness.memory.activate("a", [(1, 4 * BLOCK_TOKENS)])
    harness.memory.preempt(1)
    assert sizes == []
    harness.memory.activate("a", [(1, 4 * BLOCK_TOKENS)])
    harness.append(1, "a", 1)
    harness.memory.preempt(1)
    assert sum(sizes) == SHAPE.block_nbytes
    harness.memory.activate("a", [(1, 4 * BLOCK_TOKENS)])
    harness.check_kv(1, "a")


def test_tokens_taken_back_and_written_anew_are_saved_anew(make: MakeHarness) -> None:
    harness = make()
    harness.start(1, "a", 40)
    harness.memory.preempt(1)
    harness.memory.activate("a", [(1, 40)])
    harness.memory.commit(1, 18)
    block = harness.models["a"].kv.block_table(1)[1]
    harness.models["a"].kv.tensor[block, :, :, 2] = -1.0
    harness.memory.commit(1, 19)
    harness.memory.preempt(1)
    harness.memory.activate("a", [(1, 19)])
    block = harness.models["a"].kv.block_table(1)[1]
    assert bool((harness.models["a"].kv.tensor[block, :, :, 2] == -1.0).all())


def test_contiguous_blocks_move_in_one_copy(
    make: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = make()
    harness.start(1, "a", CHUNK_TOKENS)
    sizes = copied_out(harness, monkeypatch)
    harness.memory.preempt(1)
    assert sizes == [4 * SHAPE.block_nbytes]


def test_the_youngest_lose_their_kv_when_the_slabs_are_full_and_are_named(
    make: MakeHarness,
) -> None:
    harness = make(num_slabs=2)
    for sequence in (1, 2, 3):
        harness.start(sequence, "a", CHUNK_TOKENS)
    harness.memory.preempt(3)
    harness.memory.preempt(2)
    assert harness.memory.take_lost() == []
    harness.memory.preempt(1)
    assert harness.memory.take_lost() == [3]
    assert [harness.memory.stored_tokens(sequence) for sequence in (1, 2, 3)] == [64, 64, 0]
    harness.memory.activate("a", [(1, 64), (2, 64), (3, 64)])
    harness.check_kv(1, "a")
    harness.check_kv(2, "a")
    harness.append(3, "a", 64)


def test_the_youngest_of_all_loses_its_own_kv(make: MakeHarness) -> None:
    harness = make(num_slabs=1)
    harness.start(1, "a", CHUNK_TOKENS)
    harness.start(2, "a", CHUNK_TOKENS)
    harness.memory.preempt(1)
    harness.memory.preempt(2)
    assert harness.memory.take_lost() == [2]
    assert harness.memory.take_lost() == []
    harness.memory.activate("a", [(1, CHUNK_TOKENS)])
    harness.check_kv(1, "a")


def test_copies_that_the_device_also_holds_go_before_anybody_loses_kv(make: MakeHarness) -> None:
    harness = make(num_slabs=1)
    harness.start(1, "a", CHUNK_TOKENS)
    harness.models["a"].kv.write_back(1)
    harness.start(2, "a", CHUNK_TOKENS)
    harness.memory.preempt(2)
    assert harness.memory.take_lost() == []
    harness.memory.activate("a", [(1, CHUNK_TOKENS), (2, CHUNK_TOKENS)])
    harness.check_kv(1, "a")
    harness.check_kv(2, "a")


def test_a_clean_copy_goes_before_anything_that_must_be_written(
    make: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = make(num_chunks=WEIGHT_CHUNKS + 3)
    harness.start(1, "a", CHUNK_TOKENS)
    harness.start(2, "a", CHUNK_TOKENS)
    harness.models["a"].kv.write_back(2)
    harness.start(3, "a", CHUNK_TOKENS)
    sizes = copied_out(harness, monkeypatch)
    harness.start(4, "a", CHUNK_TOKENS)
    assert sizes == []
    kv = harness.models["a"].kv
    assert [bool(kv[sequence].device_blocks) for sequence in (1, 2, 3, 4)] == [
        True,
        False,
        True,
        True,
    ]


def test_the_least_recently_planned_is_written_back_first(make: MakeHarness) -> None:
    harness = make(num_chunks=WEIGHT_CHUNKS + 2)
    harness.start(1, "a", CHUNK_TOKENS)
    harness.start(2, "a", CHUNK_TOKENS)
    harness.memory.activate("a", [(1, CHUNK_TOKENS)])
    harness.start(3, "a", CHUNK_TOKENS)
    kv = harness.models["a"].kv
    assert [bool(kv[sequence].device_blocks) for sequence in (1, 2, 3)] == [True, False, True]


def test_swapped_out_kv_cannot_be_used(make: MakeHarness) -> None:
    harness = make()
    harness.start(1, "a", 20)
    harness.memory.preempt(1)
    with pytest.raises(SequenceNotResident):
        harness.models["a"].kv.block_table(1)
    with pytest.raises(SequenceNotResident):
        harness.memory.commit(1, 21)
    with pytest.raises(SequenceNotResident):
        harness.models["a"].kv.drop_host_copy(1)


def test_blocks_are_written_again_only_when_their_copy_is_complete(make: MakeHarness) -> None:
    harness = make()
    harness.start(1, "a", CHUNK_TOKENS)
    harness.start(2, "a", CHUNK_TOKENS)
    harness.memory.activate("a", [(1, CHUNK_TOKENS), (2, CHUNK_TOKENS)])
    leaving = set(harness.models["a"].kv.block_table(2))
    harness.memory.preempt(2)
    assert harness.memory.grow(1, 2 * CHUNK_TOKENS)
    assert leaving & set(harness.models["a"].kv.block_table(1))
    harness.append(1, "a", CHUNK_TOKENS)
    harness.memory.activate("a", [(2, CHUNK_TOKENS)])
    harness.check_kv(2, "a")
