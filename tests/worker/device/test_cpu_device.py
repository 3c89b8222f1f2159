from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from aegaeon.machine import available_memory
from aegaeon_worker.device import libc
from aegaeon_worker.device.cpu import CpuDevice
from aegaeon_worker.device.errors import DeviceMemoryError
from aegaeon_worker.device.interface import CopyLane

CHUNK = 2 << 20
LANE = CopyLane.WEIGHTS


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    device = CpuDevice(4 * CHUNK, CHUNK)
    yield device
    device.close()


def resident_nbytes() -> int:
    line = next(
        line
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines()
        if line.startswith("Anonymous:")
    )
    return int(line.split()[1]) * 1024


def test_mapping_is_rolled_back_when_the_kernel_refuses_midway(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = device.reserve("a", 4 * CHUNK, LANE)
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


@pytest.mark.parametrize("when", ["before mapping", "after unmapping"])
def test_touching_an_unmapped_position_faults(when: str) -> None:
    code = f"""
import torch
from aegaeon_worker.device.cpu import CpuDevice
from aegaeon_worker.device.interface import CopyLane
device = CpuDevice({2 * CHUNK}, {CHUNK})
target = device.reserve("a", {CHUNK}, CopyLane.KV)
if {when == "after unmapping"}:
    target.map([0]); target.tensor(0, torch.uint8, (8,)).fill_(1); target.unmap([0])
print("ready", flush=True)
print(target.tensor(0, torch.uint8, (8,)).sum())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "ready\n", done.stderr
    assert done.returncode == -signal.SIGSEGV


def test_a_pool_larger_than_the_machine_is_refused_with_both_numbers() -> None:
    asked = available_memory() + (64 << 30)
    with pytest.raises(DeviceMemoryError, match=rf"{asked} bytes .* only \d+ bytes available"):
        CpuDevice(asked)


def test_an_idle_pool_holds_no_memory_and_close_returns_what_was_used() -> None:
    before = resident_nbytes()
    device = CpuDevice(64 * CHUNK, CHUNK)
    assert resident_nbytes() - before < 8 * CHUNK
    target = device.reserve("a", 64 * CHUNK, LANE)
    target.map(range(64))
    target.tensor(0, torch.uint8, (64 * CHUNK,)).fill_(1)
    assert resident_nbytes() - before > 60 * CHUNK
    device.close()
    device.close()
    assert resident_nbytes() - before < 8 * CHUNK


def test_memory_and_address_space_stay_flat_over_many_cycles(device: CpuDevice) -> None:
    def cycle(number: int) -> None:
        target = device.reserve(f"model-{number}", 4 * CHUNK, LANE)
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
