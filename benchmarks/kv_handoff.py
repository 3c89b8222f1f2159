"""KV that goes from one worker to another through host slabs, or from node to node, on CPUs.

Two workers' memories in one process, each with a mapping of the slabs of its own, hand sequences to
each other. Between any two hand-offs as many bytes are copied within ordinary memory. A hand-off
copies twice, out to the slabs and in from them, so it cannot cost less than two such copies.

What goes to another node is read from a second process over the loopback, by turns with as many
bytes over a plain socket.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from aegaeon_worker.device.cpu import CpuDevice
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.memory_manager import MemoryManager
from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.kv.shape import KvShape
from aegaeon_worker.weights.cache import WeightCache
from aegaeon_worker.weights.layout import TensorSpec, WeightLayout
from aegaeon_worker.weights.resident import ResidentWeights
from benchmarks.machine import describe_command, describe_machine, describe_versions
from benchmarks.memory_copy import MemoryCopy
from benchmarks.report import Figure, Report, Target
from benchmarks.wire_times import WireTimes, measure_wire

MIB = 1 << 20
MODEL = "SmolLM2-135M"
SHAPE = KvShape(num_layers=30, num_kv_heads=3, head_dim=64, dtype=torch.float32)
#: The weights stay where they are, so a few will do.
WEIGHTS = WeightLayout.place([("all", [TensorSpec("w", torch.float32, (1024,))])])
SLAB_NBYTES = 256 * MIB


class Worker:
    """One worker's memory; ``folder`` is the node's."""

    def __init__(self, stack: ExitStack, folder: Path, kv_nbytes: int) -> None:
        self.device = CpuDevice(kv_nbytes + 64 * MIB)
        stack.callback(self.device.close)
        slabs = HostSlabs(folder, -(-2 * kv_nbytes // SLAB_NBYTES), SLAB_NBYTES, self.device)
        stack.callback(slabs.close)
        cache = WeightCache(folder, 64 * MIB, self.device)
        stack.callback(cache.close)
        self.memory = MemoryManager(self.device, slabs)
        stack.callback(self.memory.close)
        acquire = partial(cache.acquire, MODEL, "benchmark", WEIGHTS, _fill)
        weights = ResidentWeights(self.device, MODEL, WEIGHTS, acquire)
        self.model = self.memory.add_model(weights, SHAPE, "benchmark")

    def compute(self, sequence: int, num_tokens: int) -> None:
        """Leave recognisable KV on the device."""
        self.memory.add_sequence(sequence, MODEL)
        self.memory.activate(MODEL, [(sequence, num_tokens)])
        for block in self.memory.block_table(sequence):
            self.model.kv.tensor[block].fill_(float(sequence))
        self.memory.commit(sequence, num_tokens)

    def leave(self, sequence: int) -> KvPlace:
        """Hand the sequence off."""
        self.memory.hand_off([sequence])
        [done] = self.memory.hand_offs.finish(wait=True)
        return done.place

    def take(self, sequence: int, place: KvPlace) -> None:
        """Go on with it."""
        self.memory.add_sequence(sequence, MODEL, place)
        self.memory.activate(MODEL, [(sequence, place.num_tokens + 1)])

    def check(self, sequence: int) -> None:
        """Its KV is what was computed."""
        [imported] = self.memory.take_imports()
        assert imported.num_tokens == self.memory.stored_tokens(sequence) > 0
        used = KvShape.blocks_for(imported.num_tokens)
        for block in self.memory.block_table(sequence)[:used]:
            assert bool((self.model.kv.tensor[block] == float(sequence)).all())


@dataclass
class HandOffTimes:
    """In milliseconds, an entry per hand-off; the first of all is on its own."""

    out: list[float] = field(default_factory=list)
    into: list[float] = field(default_factory=list)
    copy: list[float] = field(default_factory=list)
    first: float = 0.0

    @property
    def both(self) -> list[float]:
        """Out and in."""
        return [out + into for out, into in zip(self.out, self.into, strict=True)]

    @property
    def ratio(self) -> list[float]:
        """Both, in copies of as many bytes."""
        return [both / copy for both, copy in zip(self.both, self.copy, strict=True)]


def _fill(views: Mapping[str, torch.Tensor]) -> None:
    views["w"].zero_()


def measure(folder: Path, num_tokens: int, rounds: int) -> HandOffTimes:
    """Hand sequences of ``num_tokens`` tokens from one worker to the other, ``rounds`` times."""
    kv_nbytes = KvShape.blocks_for(num_tokens + 1) * SHAPE.block_nbytes
    times = HandOffTimes()
    copy = MemoryCopy(KvShape.blocks_for(num_tokens) * SHAPE.block_nbytes)
    with ExitStack() as stack:
        source, target = (Worker(stack, folder, kv_nbytes) for _ in range(2))
        target.compute(0, num_tokens + 1)  # so that its device's memory has been touched, too
        target.memory.free(0)
        for sequence in range(1, rounds + 2):
            source.compute(sequence, num_tokens)
            start = time.perf_counter()
            place = source.leave(sequence)
            between = time.perf_counter()
            target.take(sequence, place)
            end = time.perf_counter()
            target.check(sequence)
            source.memory.hand_offs.release([sequence])
            target.memory.free(sequence)
            if sequence == 1:
                times.first = (end - start) * 1e3
                continue
            times.out.append((between - start) * 1e3)
            times.into.append((end - between) * 1e3)
            times.copy.append(copy.run_ms())
    return times


def main() -> None:
    """Measure, write the report, print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--tokens", type=int, default=8192, help="of a sequence (default: %(default)s)")
    add("--rounds", type=int, default=20, help="hand-offs (default: %(default)s)")
    add("--threads", type=int, default=2, help="that copy (default: %(default)s)")
    add("--shared-memory-dir", type=Path, default=Path("/dev/shm"), help="default: %(default)s")
    add("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    machine = describe_machine()
    with tempfile.TemporaryDirectory(
        dir=options.shared_memory_dir, prefix="aegaeon-bench-"
    ) as root:
        times = measure(Path(root), options.tokens, options.rounds)
        num_blocks = KvShape.blocks_for(options.tokens)
        wire = measure_wire(Path(root), SHAPE.block_nbytes, num_blocks, options.rounds)
    report = _report(times, wire, machine, options)
    report.write(options.out, "kv-handoff")
    print(report.markdown())


def _report(
    times: HandOffTimes, wire: WireTimes, machine: dict[str, str], options: argparse.Namespace
) -> Report:
    ratio = Figure("hand-off, in copies of as many bytes", "x", times.ratio)
    gigabytes = KvShape.blocks_for(options.tokens) * SHAPE.block_nbytes / 1e9

    def pace(name: str, times_ms: list[float]) -> Figure:
        return Figure(name, "GB/s", [gigabytes / time_ms * 1e3 for time_ms in times_ms])

    return Report(
        title="KV from one worker to another",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=describe_command("benchmarks.kv_handoff"),
        machine=machine,
        versions=describe_versions(),
        settings={
            "KV": f"of {MODEL} in float32, {options.tokens} tokens",
            "size": f"{KvShape.blocks_for(options.tokens) * SHAPE.block_nbytes / MIB:.0f} MiB",
            "threads": str(options.threads),
        },
        figures=[
            Figure("out to the slabs", "ms", times.out),
            Figure("in from the slabs", "ms", times.into),
            Figure("hand-off", "ms", times.both),
            Figure("copy of as many bytes in ordinary memory", "ms", times.copy),
            ratio,
            Figure("first hand-off of all, which gets the slabs their memory", "ms", [times.first]),
            pace("copy in ordinary memory", times.copy),
            pace("over the wire, from another process", wire.wire),
            pace("the same, by processor time of the reader", wire.cpu),
            pace("plain TCP socket, from the same process", wire.plain),
        ],
        targets=[Target("hand-off, in copies of as many bytes", ratio.median, "x", 2.5, False)],
    )


if __name__ == "__main__":
    main()
