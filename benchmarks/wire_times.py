"""How long KV takes from one process to another over the loopback, and as many plain bytes."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from aegaeon.security.settings import PLAIN
from aegaeon_worker.engine.commands import FetchEnded
from aegaeon_worker.kv.arrival import Arrival, Span
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.place import BlockRun, HostBlock, KvPlace, runs_of
from aegaeon_worker.kv.shape import BLOCK_TOKENS
from aegaeon_worker.service.kv_wire import KvWire
from benchmarks.wire_source import CONTENT, SLAB_NBYTES


@dataclass
class WireTimes:
    """In milliseconds, an entry per transfer; ``cpu`` is the reader's processor time."""

    wire: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)


def measure_wire(folder: Path, block_nbytes: int, num_blocks: int, rounds: int) -> WireTimes:
    """Fetch blocks from another process as a worker does, and read as many bytes from a socket."""
    with _source(folder / "source", block_nbytes, num_blocks) as facts:
        (folder / "target").mkdir()
        needed = -(-num_blocks // (SLAB_NBYTES // block_nbytes))
        slabs = HostSlabs(folder / "target", needed, SLAB_NBYTES)
        times = uvloop.run(_measure(slabs, facts, block_nbytes, num_blocks, rounds))
        slabs.close()
    return times


@contextmanager
def _source(folder: Path, block_nbytes: int, num_blocks: int) -> Iterator[dict[str, Any]]:
    folder.mkdir()
    sizes = {"--folder": folder, "--block-bytes": block_nbytes, "--blocks": num_blocks}
    words = [str(part) for pair in sizes.items() for part in pair]
    command = [sys.executable, "-m", "benchmarks.wire_source", *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.stdin.close()


async def _measure(
    slabs: HostSlabs, facts: dict[str, Any], block_nbytes: int, num_blocks: int, rounds: int
) -> WireTimes:
    blocks = slabs.take(block_nbytes, num_blocks)
    spans = []
    for run in runs_of((block, 0) for block in blocks):
        view = slabs.view(HostBlock(run.slab, run.first_block), run.num_blocks, block_nbytes)
        view.zero_()
        spans.append(Span(view.data_ptr(), run.num_blocks * block_nbytes))
    runs = tuple(BlockRun(*run) for run in facts["runs"])
    place = KvPlace(num_blocks * BLOCK_TOKENS, block_nbytes, runs, facts["kv"])
    wire, times = KvWire(PLAIN), WireTimes()
    buffer = bytearray(place.nbytes)
    for number in range(rounds + 1):
        cpu = time.process_time()
        wire_ms = await _fetch(wire, place, spans)
        cpu_ms = (time.process_time() - cpu) * 1e3
        plain_ms = _read_plain(facts["plain"], buffer)
        if number:  # the first one connects
            times.wire.append(wire_ms)
            times.cpu.append(cpu_ms)
            times.plain.append(plain_ms)
    for number, block in enumerate(blocks):
        assert bool((slabs.view(block, 1, block_nbytes) == number % 251).all())
    await wire.close()
    slabs.give_back(blocks)
    return times


async def _fetch(wire: KvWire, place: KvPlace, spans: list[Span]) -> float:
    arrival = Arrival(1, place, CONTENT)
    arrival.open(spans)
    ended: asyncio.Future[FetchEnded] = asyncio.get_running_loop().create_future()
    wire.carry(ended.set_result, arrival)
    end = await ended
    assert arrival.complete
    return end.transfer_ns / 1e6


def _read_plain(address: list[Any], buffer: bytearray) -> float:
    view, start = memoryview(buffer), time.perf_counter()
    with socket.create_connection((address[0], address[1])) as connection:
        while view:
            view = view[connection.recv_into(view) :]
    return (time.perf_counter() - start) * 1e3
