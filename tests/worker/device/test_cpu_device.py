from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aegaeon_worker.device import libc
from aegaeon_worker.device.cpu import CpuDevice
from aegaeon_worker.device.errors import DeviceMemoryError, OutOfChunks
from aegaeon_worker.device.host_memory import available_nbytes

CHUNK = 2 << 20


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    device = CpuDevice(4 * CHUNK, CHUNK)
    yield device
    device.close()


def pattern(seed: int, nbytes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)


def resident_nbytes() -> int:
    line = next(
        line
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines()
        if line.startswith("Anonymous:")
    )
    return int(line.split()[1]) * 1024


def test_a_tensor_made_before_mapping_sees_the_bytes_copied_in(device: CpuDevice) -> None:
    target = device.reserve("a", 2 * CHUNK)
    view = target.tensor(256, torch.float32, (8, 4))
    target.map([0, 1])
    source = torch.arange(32, dtype=torch.float32).view(8, 4)
    device.copy_in(target, 256, source)
    assert torch.equal(view, source)


def test_bytes_survive_neighbours_coming_and_going(device: CpuDevice) -> None:
    kept, other = device.reserve("kept", 2 * CHUNK), device.reserve("other", 4 * CHUNK)
    kept.map([1])
    data = pattern(1, CHUNK)
    device.copy_in(kept, CHUNK, data)
    for _ in range(3):
        other.map([0, 2, 3])
        other.tensor(0, torch.uint8, (CHUNK,)).fill_(255)
        kept_bytes = torch.empty(CHUNK, dtype=torch.uint8)
        device.copy_out(kept, CHUNK, kept_bytes)
        assert torch.equal(kept_bytes, data)
        other.unmap([0, 2, 3])


def test_mapping_is_all_or_nothing_when_chunks_run_out(device: CpuDevice) -> None:
    first, second = device.reserve("first", 3 * CHUNK), device.reserve("second", 3 * CHUNK)
    first.map([0, 1, 2])
    with pytest.raises(OutOfChunks):
        second.map([0, 1])
    assert second.mapped == frozenset()
    assert device.pool.owned() == {"first": 3}


def test_mapping_is_rolled_back_when_the_kernel_refuses_midway(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = device.reserve("a", 4 * CHUNK)
    real, calls = libc.move_pages, []

    def third_fails(source: int, destination: int, nbytes: int) -> None:
        calls.append(source)
        if len(calls) == 3:
            raise OSError(errno.ENOMEM, "out of mappings")
        real(source, destination, nbytes)

    monkeypatch.setattr(libc, "move_pages", third_fails)
    with pytest.raises(DeviceMemoryError, match="cannot map 4 chunks of a"):
        target.map([0, 1, 2, 3])
    assert target.mapped == frozenset()
    assert device.pool.num_free == 4
    target.map([0, 1, 2, 3])
    target.tensor(0, torch.uint8, (4 * CHUNK,)).fill_(1)


@pytest.mark.parametrize("positions", [[3], [-1], [0], [1, 1]])
def test_wrong_positions_are_refused_and_change_nothing(
    device: CpuDevice, positions: list[int]
) -> None:
    target = device.reserve("a", 3 * CHUNK)
    target.map([0])
    with pytest.raises(ValueError, match="position"):
        target.map(positions)
    assert target.mapped == {0}
    with pytest.raises(ValueError, match="not mapped"):
        target.unmap([0, 2])
    assert target.mapped == {0}


@pytest.mark.parametrize("when", ["before mapping", "after unmapping"])
def test_touching_an_unmapped_position_faults(when: str) -> None:
    code = f"""
import torch
from aegaeon_worker.device.cpu import CpuDevice
device = CpuDevice({2 * CHUNK}, {CHUNK})
target = device.reserve("a", {CHUNK})
if {when == "after unmapping"}:
    target.map([0]); target.tensor(0, torch.uint8, (8,)).fill_(1); target.unmap([0])
print("ready", flush=True)
print(target.tensor(0, torch.uint8, (8,)).sum())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "ready\n", done.stderr
    assert done.returncode == -signal.SIGSEGV


def test_a_pool_larger_than_the_machine_is_refused_with_both_numbers() -> None:
    asked = available_nbytes() + (64 << 30)
    with pytest.raises(DeviceMemoryError, match=rf"{asked} bytes .* only \d+ bytes available"):
        CpuDevice(asked)


def test_an_idle_pool_holds_no_memory_and_close_returns_what_was_used() -> None:
    before = resident_nbytes()
    device = CpuDevice(64 * CHUNK, CHUNK)
    assert resident_nbytes() - before < 8 * CHUNK
    target = device.reserve("a", 64 * CHUNK)
    target.map(range(64))
    target.tensor(0, torch.uint8, (64 * CHUNK,)).fill_(1)
    assert resident_nbytes() - before > 60 * CHUNK
    device.close()
    device.close()
    assert resident_nbytes() - before < 8 * CHUNK


def test_memory_and_address_space_stay_flat_over_many_cycles(device: CpuDevice) -> None:
    def cycle(number: int) -> None:
        target = device.reserve(f"model-{number}", 4 * CHUNK)
        target.map([3, 0, 2, 1])
        target.tensor(0, torch.uint8, (4 * CHUNK,)).fill_(number % 256)
        target.unmap([0, 3])
        target.release()
        target.release()

    cycle(0)
    before, maps = resident_nbytes(), len(Path("/proc/self/maps").read_text().splitlines())
    for number in range(100):
        cycle(number)
    assert device.pool.owned() == {}
    assert resident_nbytes() - before < CHUNK
    assert len(Path("/proc/self/maps").read_text().splitlines()) <= maps + 4


def test_two_ranges_cannot_share_a_name(device: CpuDevice) -> None:
    device.reserve("a", CHUNK)
    with pytest.raises(ValueError, match="reserved already"):
        device.reserve("a", CHUNK)


def test_a_tensor_outside_its_range_is_refused(device: CpuDevice) -> None:
    target = device.reserve("a", CHUNK)
    with pytest.raises(ValueError, match="outside a"):
        target.tensor(CHUNK - 4, torch.float32, (2,))


class RangeMachine(RuleBasedStateMachine):
    """Random mapping of two ranges over one small pool; every mapped byte keeps its value."""

    def __init__(self) -> None:
        super().__init__()
        self.device = CpuDevice(3 * CHUNK, CHUNK)
        self.ranges = {name: self.device.reserve(name, 3 * CHUNK) for name in ("a", "b")}
        self.stamps: dict[tuple[str, int], int] = {}
        self.next_stamp = 1

    @rule(name=st.sampled_from(["a", "b"]), positions=st.sets(st.integers(0, 2), min_size=1))
    def map(self, name: str, positions: set[int]) -> None:
        target = self.ranges[name]
        if positions & target.mapped:
            with pytest.raises(ValueError, match="mapped already"):
                target.map(positions)
        elif len(positions) > self.device.pool.num_free:
            with pytest.raises(OutOfChunks):
                target.map(positions)
        else:
            target.map(positions)
            for position in positions:
                self.stamps[name, position] = self.next_stamp
                self.ends(name, position).fill_(self.next_stamp)
                self.next_stamp += 1

    @precondition(lambda self: self.stamps)
    @rule(data=st.data())
    def unmap(self, data: st.DataObject) -> None:
        name, position = data.draw(st.sampled_from(sorted(self.stamps)))
        self.ranges[name].unmap([position])
        del self.stamps[name, position]

    def ends(self, name: str, position: int) -> torch.Tensor:
        words = self.ranges[name].tensor(position * CHUNK, torch.int64, (CHUNK // 8,))
        return words[:: CHUNK // 8 - 1]

    @invariant()
    def mapped_bytes_are_unchanged_and_the_ledger_agrees(self) -> None:
        for (name, position), stamp in self.stamps.items():
            assert self.ends(name, position).tolist() == [stamp, stamp]
        self.device.pool.audit()
        for name, target in self.ranges.items():
            assert target.mapped == {position for owner, position in self.stamps if owner == name}
            assert self.device.pool.owned().get(name, 0) == len(target.mapped)

    def teardown(self) -> None:
        self.device.close()
        assert self.device.pool.owned() == {}


TestRangeMachine = RangeMachine.TestCase
TestRangeMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
