from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aegaeon_worker.kv.errors import OutOfHostBlocks
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.shape import BLOCK_TOKENS
from tests.worker.device.makers import KINDS
from tests.worker.kv.memory_harness import (
    CHUNK_TOKENS,
    ODD_SHAPE,
    SHAPE,
    WEIGHT_CHUNKS,
    Harness,
)
from tests.worker.kv.prefix_harness import PrefixHarness, document

SLAB = 2 << 20
#: Blocks of SHAPE in a slab.
SLAB_BLOCKS = SLAB // SHAPE.block_nbytes


class Node:
    """A worker over slabs that another one shares."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.made: list[Harness] = []

    def worker(self, *, num_chunks: int = WEIGHT_CHUNKS + 4, num_slabs: int = 8) -> PrefixHarness:
        shapes = {"a": SHAPE, "b": ODD_SHAPE}
        self.made.append(
            Harness(
                shapes,
                kind=self.kind,
                num_chunks=num_chunks,
                num_slabs=num_slabs,
                slab_nbytes=SLAB,
                slab_dir=self.folder,
            )
        )
        return PrefixHarness(self.made[-1])


@pytest.fixture(params=KINDS)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    node = Node(request.param, tmp_path)
    yield node
    for harness in node.made:
        harness.memory.audit()
        harness.close()


def tables(worker: PrefixHarness, *sequences: int) -> list[list[int]]:
    return [worker.memory.block_table(sequence) for sequence in sequences]


def test_sequences_side_by_side_use_one_copy_and_part_where_they_differ(node: Node) -> None:
    worker = node.worker()
    common = document(1, 2 * BLOCK_TOKENS)
    assert worker.run(1, common + document(2, 20)) == 0
    assert worker.run(2, common + document(3, 20)) == 2 * BLOCK_TOKENS
    assert worker.activate(1, 2) == [1, 2]
    first, second = tables(worker, 1, 2)
    assert first[:2] == second[:2]
    assert set(first[2:]).isdisjoint(second[2:])
    worker.end(1)
    worker.check(2)


def test_the_last_token_is_always_computed(node: Node) -> None:
    worker = node.worker()
    tokens = document(1, 2 * BLOCK_TOKENS)
    worker.run(1, [*tokens])
    assert worker.run(2, [*tokens]) == BLOCK_TOKENS
    assert worker.run(3, [*tokens, 5]) == 2 * BLOCK_TOKENS
    assert worker.run(4, tokens[:BLOCK_TOKENS]) == 0


def test_other_tokens_models_and_salts_find_nothing(node: Node) -> None:
    worker = node.worker(num_chunks=12)
    tokens = document(1, 40)
    worker.run(1, tokens)
    assert worker.run(2, [0, *tokens[1:]]) == 0, "the first token differs"
    assert worker.run(3, [*tokens[:15], 0, *tokens[16:]]) == 0
    assert worker.run(4, [*tokens[:31], 0, *tokens[32:]]) == 16
    assert worker.run(5, tokens, "b") == 0
    assert worker.run(6, tokens, salt="x") == 0
    assert worker.run(7, tokens, salt="x") == 32


def test_what_a_failed_sequence_has_stored_is_found_by_nobody(node: Node) -> None:
    worker = node.worker()
    tokens = document(1, 40)
    worker.run(1, [*tokens])
    worker.run(2, [*tokens])
    worker.end(2, sound=False)
    assert worker.run(3, [*tokens]) == 0
    worker.end(1)


def test_kept_kv_leaves_the_device_before_anything_in_use(node: Node) -> None:
    worker = node.worker()
    worker.run(1, document(1, CHUNK_TOKENS))
    worker.end(1)
    free = worker.memory.device_usage().free
    worker.run(2, document(2, CHUNK_TOKENS))
    assert worker.memory.device_usage().free < free
    # All chunks beside the weights: nobody else's.
    for sequence in (3, 4, 5):
        worker.run(sequence, document(sequence, CHUNK_TOKENS))
    kv = worker.harness.models["a"].kv
    assert all(kv[sequence].resident and kv[sequence].device_blocks for sequence in (2, 3, 4, 5))
    assert worker.memory.prefix_use.device_bytes == 0


def test_kept_blocks_beside_blocks_in_use_make_room_for_their_own_model(node: Node) -> None:
    """Chunks that hold both cannot go, but no block of them is lost for those that run."""
    worker = node.worker(num_chunks=WEIGHT_CHUNKS + 2)
    for number in range(1, 5):
        worker.run(number, document(number, 2 * BLOCK_TOKENS))
    for number in (1, 3):
        worker.end(number)
    worker.memory.activate("a", [(2, 32), (4, 32)])
    worker.run(9, document(9, 4 * BLOCK_TOKENS))
    kv = worker.harness.models["a"].kv
    assert all(kv[sequence].device_blocks for sequence in (2, 4, 9))
    assert worker.memory.take_lost() == []


def test_a_prefix_comes_back_from_the_host_as_it_was(node: Node) -> None:
    worker = node.worker(num_slabs=32)
    tokens = document(1, 3 * BLOCK_TOKENS + 1)
    worker.run(1, [*tokens])
    worker.end(1)
    worker.run(2, document(2, 4 * CHUNK_TOKENS - BLOCK_TOKENS))
    assert worker.memory.prefix_use.device_bytes == 0, "all of the device is in use"
    worker.memory.tidy()
    assert worker.memory.prefix_use.host_bytes == 3 * SHAPE.block_nbytes
    worker.end(2)
    assert worker.run(3, tokens) == 3 * BLOCK_TOKENS
    assert worker.memory.take_reused()[-1].num_tokens == 3 * BLOCK_TOKENS


def test_a_prefix_is_replaced_from_its_end(node: Node) -> None:
    worker = node.worker()
    tokens = document(1, 3 * BLOCK_TOKENS + 1)
    worker.run(1, [*tokens])
    worker.end(1)
    worker.run(2, document(2, 4 * CHUNK_TOKENS - BLOCK_TOKENS))
    worker.end(2)  # needs more than the free slabs that keeping may take
    assert 0 < worker.run(3, tokens) < 3 * BLOCK_TOKENS


def test_slabs_with_kept_blocks_alone_are_everybodys(node: Node, tmp_path: Path) -> None:
    worker = node.worker(num_slabs=4)
    tokens = document(1, 3 * BLOCK_TOKENS + 1)
    worker.run(1, [*tokens])
    worker.end(1)
    worker.memory.tidy()
    assert worker.harness.slabs.owned == frozenset()
    assert worker.memory.prefix_use.host_bytes > 0
    other = HostSlabs(tmp_path, 4, SLAB)
    taken = other.take(SLAB, 4)
    for block in taken:
        other.view(block, 1, SLAB).fill_(0x55)
    # Off the device, so that only the host copy is left to be found, and it is not what it was.
    worker.harness.models["a"].kv.evict(worker.harness.models["a"].kv.ledger.longest_resting(9))
    assert worker.run(2, tokens) == 0
    assert worker.memory.prefix_use.host_bytes == 0
    other.give_back(taken)
    other.close()


def test_keeping_leaves_the_last_half_of_the_free_slabs_alone(node: Node, tmp_path: Path) -> None:
    worker = node.worker(num_slabs=4)
    other = HostSlabs(tmp_path, 4, SLAB)
    theirs = other.take(SLAB, 2)
    worker.run(1, document(1, 40))
    worker.end(1)
    worker.memory.tidy()
    assert worker.memory.prefix_use.host_bytes == 0
    other.give_back(theirs)
    other.close()


def test_sequences_in_need_of_slabs_take_kept_blocks_before_the_last_slabs(
    node: Node, tmp_path: Path
) -> None:
    worker = node.worker(num_chunks=WEIGHT_CHUNKS + 6, num_slabs=2)
    slabs = worker.harness.slabs
    blocks = slabs.take(SHAPE.block_nbytes, SLAB_BLOCKS)
    gone = []
    slabs.keep(blocks[1:], 7, gone.append)
    other = HostSlabs(tmp_path, 2, SLAB)
    assert slabs.take(SHAPE.block_nbytes, 2) == blocks[1:3] == gone
    assert len(other.take(SLAB, 1)) == 1, "one slab is left to others"
    taken = slabs.take(SHAPE.block_nbytes, 1)
    with pytest.raises(OutOfHostBlocks):
        slabs.take(SHAPE.block_nbytes, 1)
    assert taken == gone[2:]
    slabs.give_back([blocks[0], *gone])
    other.close()


def test_tokens_that_others_use_cannot_be_taken_back(node: Node) -> None:
    worker = node.worker()
    tokens = document(1, 40)
    worker.run(1, [*tokens])
    worker.memory.commit(1, 20)
    worker.memory.commit(1, 36)
    assert worker.run(2, [*tokens]) == 2 * BLOCK_TOKENS
    worker.activate(1, 2)
    with pytest.raises(ValueError, match="cannot be taken back"):
        worker.memory.commit(1, 20)
    worker.end(2)
    worker.memory.commit(1, 20)
    assert worker.run(3, [*tokens]) == BLOCK_TOKENS


def test_a_model_that_is_gone_leaves_nothing(node: Node) -> None:
    worker = node.worker()
    tokens = document(1, 40)
    worker.run(1, [*tokens])
    worker.end(1)
    use = worker.memory.prefix_use
    worker.memory.remove_model("a")
    worker.harness.add_model("a", SHAPE, "a")
    assert worker.run(2, [*tokens]) == 0
    after = worker.memory.prefix_use
    assert (after.device_bytes, after.host_bytes) == (0, 0)
    assert after.queried_tokens == use.queried_tokens + 40, "counts go on"


def test_the_same_commands_lead_to_the_same_decisions(tmp_path: Path) -> None:
    def play(name: str) -> list[object]:
        node = Node("cpu", tmp_path / name)
        node.folder.mkdir()
        worker = node.worker(num_chunks=WEIGHT_CHUNKS + 2, num_slabs=3)
        seen: list[object] = []
        for sequence in range(1, 20):
            tokens = document(sequence % 3, 30) + document(sequence, 20)
            seen.append(worker.run(sequence, tokens))
            seen.append(tables(worker, sequence))
            if sequence % 2:
                worker.end(sequence)
        seen.append(worker.memory.prefix_use)
        for harness in node.made:
            harness.close()
        return seen

    assert play("one") == play("two")
