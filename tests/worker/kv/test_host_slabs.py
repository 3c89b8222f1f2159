from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aegaeon_worker.kv.errors import KvMemoryError, OutOfHostBlocks
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.place import BlockRun, HostBlock, KvPlace
from aegaeon_worker.weights import space
from aegaeon_worker.weights.errors import SharedMemoryFull
from aegaeon_worker.weights.space import allocated_nbytes

SLAB = 4096


@pytest.fixture
def slabs(tmp_path: Path) -> Iterator[HostSlabs]:
    slabs = HostSlabs(tmp_path, 3, SLAB)
    yield slabs
    slabs.close()


def test_blocks_of_different_sizes_never_share_a_slab(slabs: HostSlabs) -> None:
    small, large = slabs.take(512, 3), slabs.take(2048, 1)
    assert {block.slab for block in small}.isdisjoint({block.slab for block in large})
    slabs.view(small[0], 3, 512).fill_(1)
    slabs.view(large[0], 1, 2048).fill_(2)
    assert slabs.view(small[0], 3, 512).sum().item() == 3 * 512
    assert slabs.audit() == {512: 3, 2048: 1}


def test_taking_is_all_or_nothing(slabs: HostSlabs) -> None:
    slabs.take(2048, 3)
    with pytest.raises(OutOfHostBlocks, match="no room for 4 KV blocks of 2048 bytes in 3 slabs"):
        slabs.take(2048, 4)
    assert slabs.audit() == {2048: 3}
    assert len(slabs.take(2048, 3)) == 3


def test_an_empty_slab_serves_another_size(slabs: HostSlabs) -> None:
    blocks = slabs.take(4096, 3)
    slabs.give_back(blocks)
    assert slabs.owned == frozenset()
    assert len(slabs.take(1024, 12)) == 12


def test_a_block_is_freed_once_and_only_by_its_owner(slabs: HostSlabs) -> None:
    blocks = slabs.take(1024, 2)
    slabs.give_back(blocks[:1])
    with pytest.raises(ValueError, match="not in use"):
        slabs.give_back(blocks[:1])
    with pytest.raises(ValueError, match="not in use"):
        slabs.give_back([HostBlock(2, 0)])


def test_what_is_left_of_users_that_are_gone_is_freed_at_once(slabs: HostSlabs) -> None:
    slabs.take(512, 3)
    slabs.publish(slabs.take(1024, 2), content=7)
    slabs.give_back_all()
    assert (slabs.owned, slabs.audit()) == (frozenset(), {})
    slabs.give_back_all()


def test_workers_of_a_node_share_the_slabs(slabs: HostSlabs, tmp_path: Path) -> None:
    other = HostSlabs(tmp_path, 3, SLAB)
    mine = slabs.take(SLAB, 2)
    theirs = other.take(SLAB, 1)
    assert slabs.owned.isdisjoint(other.owned)
    with pytest.raises(OutOfHostBlocks):
        other.take(SLAB, 1)
    slabs.give_back(mine[:1])
    theirs += other.take(SLAB, 1)
    slabs.view(mine[1], 1, SLAB).fill_(5)
    other.view(theirs[0], 1, SLAB).fill_(6)
    assert int(slabs.view(mine[1], 1, SLAB)[0]) == 5
    other.close()
    assert len(slabs.take(SLAB, 2)) == 2


def run_and_kill(code: str, folder: Path) -> str:
    """What another worker prints before it dies."""
    worker = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    line = worker.stdout.readline()
    worker.send_signal(signal.SIGKILL)
    worker.wait(timeout=30)
    worker.stdout.close()
    return line


_OTHER_WORKER = f"""
import sys, time
from pathlib import Path
from aegaeon_worker.kv.host_slabs import HostSlabs
slabs = HostSlabs(Path(sys.argv[1]), 3, {SLAB})
blocks = slabs.take({SLAB}, 3)
for number, block in enumerate(blocks):
    slabs.view(block, 1, {SLAB}).fill_(number)
print(slabs.publish(blocks, 7)[0].generation, flush=True)
time.sleep(60)
"""


def test_a_killed_workers_slabs_are_free_at_once(tmp_path: Path) -> None:
    assert int(run_and_kill(_OTHER_WORKER, tmp_path)) > 0
    slabs = HostSlabs(tmp_path, 3, SLAB)
    assert len(slabs.take(SLAB, 3)) == 3
    slabs.close()


def test_what_a_killed_worker_published_stays_readable_until_its_slab_is_taken(
    tmp_path: Path,
) -> None:
    generation = int(run_and_kill(_OTHER_WORKER, tmp_path))
    places = [
        KvPlace(16, SLAB, (BlockRun(slab, generation, first_block=0, num_blocks=1),))
        for slab in range(3)
    ]
    slabs = HostSlabs(tmp_path, 3, SLAB)
    assert all(slabs.holds(place, 7) for place in places)
    assert int(slabs.view(HostBlock(2, 0), 1, SLAB).max()) == 2
    [mine] = slabs.take(SLAB, 1)
    assert [slabs.holds(place, 7) for place in places] == [s != mine.slab for s in range(3)]
    slabs.close()


def test_what_is_published_is_told_from_what_was_there_before(slabs: HostSlabs) -> None:
    keep, *blocks = slabs.take(1024, 3)
    [first] = slabs.publish(blocks, 7)
    place = KvPlace(32, 1024, (first,))
    assert slabs.holds(place, 7)
    assert not slabs.holds(place, 8), "other contents"
    assert not slabs.holds(replace(place, runs=(replace(first, num_blocks=3),)), 7)
    slabs.give_back(blocks[1:])
    assert not slabs.holds(place, 7), "half of it is gone"
    blocks[1:] = slabs.take(1024, 1)
    again = slabs.publish(blocks, 7)
    assert [run.generation == first.generation for run in again] == [True, False]
    assert KvPlace(32, 1024, again).blocks == place.blocks
    assert not slabs.holds(place, 7)
    assert slabs.holds(replace(place, runs=again), 7)
    slabs.give_back([keep, *blocks])


_BUSY_WORKER = f"""
import sys
from pathlib import Path
from aegaeon_worker.kv.host_slabs import HostSlabs
slabs = HostSlabs(Path(sys.argv[1]), 1, {SLAB << 11})
slabs.take({SLAB << 8}, 1)
for number in range(300):
    blocks = slabs.take({SLAB << 8}, 4)
    slabs.view(blocks[0], 4, {SLAB << 8}).fill_(number % 251)
    [run] = slabs.publish(blocks, 7)
    print(run.generation, run.first_block, number % 251, flush=True)
    if number < 299:
        slabs.give_back(blocks)
sys.stdin.read()
"""


def test_bytes_that_change_under_a_reader_are_never_taken_for_what_was_published(
    tmp_path: Path,
) -> None:
    code = [sys.executable, "-c", _BUSY_WORKER, str(tmp_path)]
    with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        lines = itertools.islice(worker.stdout, 300)
        first = next(lines)  # the file is there
        slabs = HostSlabs(tmp_path, 1, SLAB << 11)
        taken = 0
        for line in itertools.chain([first], lines):
            generation, first_block, value = (int(word) for word in line.split())
            place = KvPlace(64, SLAB << 8, (BlockRun(0, generation, first_block, 4),))
            if slabs.holds(place, 7):
                copy = slabs.view(HostBlock(0, first_block), 4, SLAB << 8).clone()
                if slabs.holds(place, 7):
                    assert copy.unique().tolist() == [value]
                    taken += 1
        assert taken > 0, "the last one stays"
        slabs.close()


def test_workers_with_other_settings_are_refused(slabs: HostSlabs, tmp_path: Path) -> None:
    with pytest.raises(KvMemoryError, match="all workers of a node need the same slab settings"):
        HostSlabs(tmp_path, 4, SLAB)


def test_slabs_larger_than_the_directory_are_refused_at_start(tmp_path: Path) -> None:
    num_slabs = space.free_nbytes(tmp_path) // (1 << 30) + 100
    with pytest.raises(
        SharedMemoryFull, match=rf"KV slabs' budget needs {num_slabs << 30} bytes in {tmp_path}"
    ):
        HostSlabs(tmp_path, num_slabs, 1 << 30)


def test_a_block_larger_than_a_slab_is_refused(slabs: HostSlabs) -> None:
    with pytest.raises(KvMemoryError, match="block of 4097 bytes does not fit into a slab of 4096"):
        slabs.take(4097, 1)


def test_a_full_file_system_reads_as_no_room(
    slabs: HostSlabs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    slabs.take(1024, 4)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OutOfHostBlocks):
        slabs.take(1024, 1)
    assert "another shared-memory directory" in caplog.text
    assert slabs.audit() == {1024: 4}
    monkeypatch.undo()
    assert len(slabs.take(1024, 8)) == 8


def test_a_large_slab_gets_its_memory_in_steps(tmp_path: Path) -> None:
    slab_nbytes = 256 << 20
    slabs = HostSlabs(tmp_path, 1, slab_nbytes)
    [first] = slabs.take(1 << 20, 1)
    assert first.index == 0
    assert allocated_nbytes(tmp_path / "slabs") < slab_nbytes // 4
    rest = slabs.take(1 << 20, 255)
    slabs.view(rest[0], 255, 1 << 20).fill_(7)
    # Some file systems count the file's own tables as well.
    assert 0 <= allocated_nbytes(tmp_path / "slabs") - slab_nbytes < 1 << 20
    slabs.give_back([first, *rest])
    slabs.close()


class SlabMachine(RuleBasedStateMachine):
    """Two workers take and free blocks of two sizes; nobody's bytes change."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.workers = [HostSlabs(Path(self.folder.name), 3, SLAB) for _ in range(2)]
        self.held: dict[tuple[int, HostBlock], tuple[int, int]] = {}
        self.stamp = 0

    @rule(worker=st.integers(0, 1), size=st.sampled_from([1024, 1500]), count=st.integers(1, 5))
    def take(self, worker: int, size: int, count: int) -> None:
        try:
            blocks = self.workers[worker].take(size, count)
        except OutOfHostBlocks:
            per_slab = SLAB // size
            mine = [b for (w, b), (s, _) in self.held.items() if (w, s) == (worker, size)]
            slabs, in_use = {block.slab for block in mine}, len(mine)
            unowned = 3 - len(self.workers[0].owned | self.workers[1].owned)
            assert (len(slabs) + unowned) * per_slab - in_use < count
            return
        for block in blocks:
            assert (worker, block) not in self.held
            self.stamp = (self.stamp + 1) % 256
            self.workers[worker].view(block, 1, size).fill_(self.stamp)
            self.held[worker, block] = (size, self.stamp)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        for worker, block in data.draw(st.sets(st.sampled_from(sorted(self.held, key=str)))):
            self.workers[worker].give_back([block])
            del self.held[worker, block]

    @invariant()
    def every_slab_has_one_owner_and_every_block_its_bytes(self) -> None:
        assert self.workers[0].owned.isdisjoint(self.workers[1].owned)
        for number, slabs in enumerate(self.workers):
            used: dict[int, int] = {}
            for (worker, block), (size, stamp) in self.held.items():
                if worker == number:
                    used[size] = used.get(size, 0) + 1
                    assert torch.equal(
                        slabs.view(block, 1, size), torch.full((size,), stamp, dtype=torch.uint8)
                    )
            assert slabs.audit() == used

    def teardown(self) -> None:
        for slabs in self.workers:
            slabs.close()
        self.folder.cleanup()


TestSlabMachine = SlabMachine.TestCase
TestSlabMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
