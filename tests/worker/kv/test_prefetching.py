from __future__ import annotations

from tests.worker.kv.memory_harness import CHUNK_TOKENS, SHAPE, WEIGHT_CHUNKS, Harness, MakeHarness


def prefetched(harness: Harness, model: str) -> bool:
    for _ in range(5):
        harness.memory.prefetch(model)
        harness.models[model].weights.gate.wait_all()  # lets a lazy device get on
    return harness.models[model].weights.resident


def test_the_next_model_comes_into_free_chunks_and_its_turn_copies_nothing(
    make: MakeHarness,
) -> None:
    harness = make(num_chunks=2 * WEIGHT_CHUNKS + 2)
    harness.start(1, "a", CHUNK_TOKENS)
    assert prefetched(harness, "b")
    harness.check_kv(1, "a")
    harness.check_weights("a", "a")
    before = harness.memory.transfers
    harness.memory.activate("b", [])
    assert harness.memory.transfers == before
    harness.check_weights("b", "b")


def test_nothing_of_the_turn_leaves_for_a_prefetch(make: MakeHarness) -> None:
    harness = make(num_chunks=2 * WEIGHT_CHUNKS + 1)
    harness.start(1, "a", CHUNK_TOKENS)
    used = harness.device.pool.owned()
    # A chunk is free for weights of two, and the turn may need it for its next block.
    assert not prefetched(harness, "b")
    assert harness.device.pool.owned() == used
    assert not harness.models["b"].weights.mapped


def test_a_block_to_spare_is_left_to_every_sequence_of_the_turn(make: MakeHarness) -> None:
    harness = make(num_chunks=2 * WEIGHT_CHUNKS + 1)
    harness.start(1, "a", 1)
    assert not prefetched(harness, "b")
    harness.memory.free(1)
    harness.memory.activate("a", [])
    assert prefetched(harness, "b")


def test_only_the_least_recently_planned_weights_make_room(make: MakeHarness) -> None:
    harness = make(num_chunks=3 * WEIGHT_CHUNKS)
    for name in ("c", "d"):
        harness.add_model(name, SHAPE, fingerprint=name)
    for name in ("c", "b", "a"):
        harness.memory.activate(name, [])
    assert prefetched(harness, "d")
    resident = [name for name, model in harness.models.items() if model.weights.resident]
    assert resident == ["a", "b", "d"]


def test_kv_outside_the_turn_stays_where_it_is(make: MakeHarness) -> None:
    harness = make(num_chunks=2 * WEIGHT_CHUNKS)
    harness.start(1, "a", CHUNK_TOKENS)
    harness.models["a"].kv.write_back(1)
    harness.memory.activate("a", [])
    assert not prefetched(harness, "b")
    assert harness.models["a"].kv[1].resident


def test_a_turn_that_grows_takes_prefetched_weights_back(make: MakeHarness) -> None:
    harness = make(num_chunks=2 * WEIGHT_CHUNKS + 2)
    harness.start(1, "a", CHUNK_TOKENS)
    assert prefetched(harness, "b")
    assert harness.memory.grow(1, 3 * CHUNK_TOKENS)
    assert not harness.models["b"].weights.mapped
    harness.check_kv(1, "a")
    assert not prefetched(harness, "b")


def test_a_prefetch_that_is_half_done_is_completed_by_the_turn(make: MakeHarness) -> None:
    harness = make(num_chunks=2 * WEIGHT_CHUNKS + 2)
    harness.memory.activate("a", [])
    harness.memory.prefetch("b")
    harness.memory.activate("b", [])
    harness.check_weights("b", "b")


def test_an_unknown_model_and_the_running_one_are_ignored(make: MakeHarness) -> None:
    harness = make()
    harness.memory.activate("a", [])
    before = harness.memory.transfers
    harness.memory.prefetch("nobody")
    harness.memory.prefetch("a")
    assert harness.memory.transfers == before
