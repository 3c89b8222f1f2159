from __future__ import annotations

import pytest

from aegaeon.errors import ErrorReason
from aegaeon_worker.kv.errors import KvMemoryError, PoolTooSmall
from aegaeon_worker.kv.shape import BLOCK_TOKENS, KvShape
from tests.worker.device.makers import CHUNK
from tests.worker.kv.memory_harness import (
    CHUNK_TOKENS,
    LAYOUT,
    ODD_SHAPE,
    SHAPE,
    WEIGHT_CHUNKS,
    Harness,
    MakeHarness,
)


def test_two_models_alternate_in_a_pool_that_holds_one(make: MakeHarness) -> None:
    harness = make(num_chunks=3)
    harness.start(1, "a", 20)
    harness.start(2, "b", 20)
    for _ in range(3):
        for sequence, model in ((1, "a"), (2, "b")):
            wanted = [(sequence, harness.memory.stored_tokens(sequence) + 1)]
            assert harness.memory.activate(model, wanted) == [sequence]
            harness.check_weights(model, model)
            harness.check_kv(sequence, model)
            harness.append(sequence, model, 1)
            harness.memory.audit()
    assert harness.memory.take_lost() == []


def test_weights_stay_when_there_is_room_for_both(make: MakeHarness) -> None:
    harness = make(num_chunks=8)
    harness.start(1, "a", 20)
    harness.start(2, "b", 20)
    before = harness.memory.transfers.weight_bytes
    harness.memory.activate("a", [(1, 21)])
    assert harness.memory.transfers.weight_bytes == before
    assert harness.models["b"].weights.resident


def test_a_turn_runs_the_leading_sequences_that_fit(make: MakeHarness) -> None:
    harness = make(num_chunks=WEIGHT_CHUNKS + 2)
    for sequence in (1, 2, 3):
        harness.start(sequence, "a")
    wants = [(sequence, CHUNK_TOKENS) for sequence in (1, 2, 3)]
    assert harness.memory.activate("a", wants) == [1, 2]


def test_a_batch_that_outgrows_the_pool_is_told_so_and_continues_after_preemption(
    make: MakeHarness,
) -> None:
    harness = make(num_chunks=WEIGHT_CHUNKS + 2)
    harness.start(1, "a", CHUNK_TOKENS)
    harness.start(2, "a", CHUNK_TOKENS)
    harness.memory.activate("a", [(1, CHUNK_TOKENS), (2, CHUNK_TOKENS)])
    assert not harness.memory.grow(1, CHUNK_TOKENS + 1)
    harness.check_kv(1, "a")
    harness.check_kv(2, "a")
    harness.memory.preempt(2)
    assert harness.memory.grow(1, CHUNK_TOKENS + 1)
    harness.append(1, "a", 1)
    harness.check_kv(1, "a")


def test_growing_evicts_what_is_outside_the_turn(make: MakeHarness) -> None:
    harness = make(num_chunks=2 * WEIGHT_CHUNKS + 2)
    harness.start(2, "b", 20)
    harness.start(1, "a", 20)
    assert harness.models["b"].weights.resident
    assert harness.memory.grow(1, 2 * CHUNK_TOKENS)
    assert harness.memory.grow(1, 4 * CHUNK_TOKENS)
    assert not harness.models["b"].weights.resident
    assert harness.models["a"].weights.resident
    harness.memory.activate("b", [(2, 20)])
    harness.check_kv(2, "b")


def test_scattered_blocks_of_the_only_sequence_are_brought_together(make: MakeHarness) -> None:
    harness = make(num_chunks=WEIGHT_CHUNKS + 2)
    kv, full = harness.models["b"].kv, harness.models["b"].max_tokens
    for sequence in (1, 2):
        harness.start(sequence, "b")
    # Without the weights there is room for a sequence in the first and the last chunk of the pool,
    # where it could not grow to the length that fits into two neighbouring chunks.
    kv.ensure_capacity(1, 2 * BLOCK_TOKENS)
    kv.ensure_capacity(2, 6 * BLOCK_TOKENS)
    kv.ensure_capacity(1, 3 * BLOCK_TOKENS)
    harness.append(1, "b", 3 * BLOCK_TOKENS)
    harness.memory.free(2)
    assert kv.block_table(1) == [0, 1, 8]
    assert harness.memory.activate("b", [(1, full)]) == [1]
    assert kv.block_table(1) == [0, 1, 2, 3, 4]
    harness.check_kv(1, "b")


def test_a_sequence_that_can_never_fit_is_refused_with_the_numbers(make: MakeHarness) -> None:
    harness = make(num_chunks=WEIGHT_CHUNKS + 1)
    harness.start(1, "a", CHUNK_TOKENS)
    expected = (
        rf"sequence 1 of a needs KV for 65 tokens \({5 * SHAPE.block_nbytes} bytes\), but beside "
        rf"{LAYOUT.nbytes} bytes of weights the device pool of {3 * CHUNK} bytes holds only 64"
    )
    with pytest.raises(PoolTooSmall, match=expected):
        harness.memory.grow(1, 65)
    with pytest.raises(PoolTooSmall, match=expected):
        harness.memory.activate("a", [(1, 65)])
    harness.check_kv(1, "a")


def test_a_model_that_can_never_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        PoolTooSmall,
        match=rf"a needs {LAYOUT.nbytes} bytes for weights and at least {SHAPE.block_nbytes} for "
        rf"KV, in chunks of {CHUNK}, but the device pool has {2 * CHUNK} bytes",
    ):
        Harness({"a": SHAPE}, num_chunks=WEIGHT_CHUNKS)


def test_a_block_larger_than_a_slab_is_refused_when_the_model_is_added() -> None:
    with pytest.raises(KvMemoryError, match="does not fit into a slab"):
        Harness({"a": SHAPE}, slab_nbytes=4096)


def test_kv_does_not_outlive_the_weights_that_computed_it(make: MakeHarness) -> None:
    harness = make()
    harness.start(1, "a", 20)
    harness.memory.preempt(1)
    harness.memory.remove_model("a")
    harness.memory.audit()
    harness.add_model("a", SHAPE, fingerprint="new weights")
    with pytest.raises(KeyError):
        harness.memory.stored_tokens(1)
    harness.start(1, "a")
    assert harness.memory.stored_tokens(1) == 0
    harness.memory.activate("a", [(1, 1)])
    harness.check_weights("a", "new weights")


def test_memory_is_flat_over_many_models(make: MakeHarness) -> None:
    harness = make()
    free = harness.device.pool.num_free
    for number in range(100):
        harness.add_model("c", SHAPE, fingerprint=f"{number % 2}")
        harness.start(number, "c", 20)
        harness.memory.preempt(number)
        harness.memory.remove_model("c")
        harness.memory.audit()
        assert harness.device.pool.num_free == free
        assert harness.slabs.owned == frozenset()


def test_sequences_of_another_model_are_refused(make: MakeHarness) -> None:
    harness = make()
    harness.start(1, "b")
    with pytest.raises(ValueError, match=r"sequences \[1\] do not belong to model a"):
        harness.memory.activate("a", [(1, 1)])


def test_capacity_in_tokens_is_what_fits_beside_the_weights(make: MakeHarness) -> None:
    harness = make(num_chunks=5)
    assert harness.models["a"].max_tokens == 3 * CHUNK_TOKENS
    assert harness.models["b"].max_tokens == 8 * BLOCK_TOKENS
    assert KvShape.blocks_for(harness.models["b"].max_tokens) * ODD_SHAPE.block_nbytes <= 3 * CHUNK


def test_transfers_and_usage_count_what_moved_and_what_stays(make: MakeHarness) -> None:
    harness = make(num_chunks=5)
    before = harness.memory.transfers
    harness.start(1, "a", CHUNK_TOKENS)
    harness.memory.preempt(1)
    harness.memory.activate("a", [(1, CHUNK_TOKENS)])
    moved = harness.memory.transfers - before
    assert (moved.weight_bytes, moved.kv_bytes) == (LAYOUT.nbytes, 2 * CHUNK)
    assert moved.weight_ns > 0
    assert moved.kv_ns > 0
    assert harness.memory.device_usage() == (WEIGHT_CHUNKS * CHUNK, CHUNK, 2 * CHUNK)
    assert harness.memory.num_sequences == 1


def test_the_error_of_a_small_pool_carries_its_numbers_for_programs(make: MakeHarness) -> None:
    harness = make(num_chunks=WEIGHT_CHUNKS + 1)
    harness.start(1, "a")
    with pytest.raises(PoolTooSmall) as caught:
        harness.memory.grow(1, 65)
    assert caught.value.reason is ErrorReason.INSUFFICIENT_MEMORY
    assert caught.value.metadata == {
        "needed_bytes": str(LAYOUT.nbytes + 5 * SHAPE.block_nbytes),
        "available_bytes": str(3 * CHUNK),
    }
