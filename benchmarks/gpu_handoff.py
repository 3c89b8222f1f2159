"""KV of one sequence from the device of one process to that of another, beside decode steps.

Needs one NVIDIA GPU, or two: then KV goes from cuda:0 to cuda:1. The limits are the fastest copies
of as many bytes between the same two devices, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch

from aegaeon_worker.device.cuda_sharing import CudaPeer
from aegaeon_worker.device.sharing import cut_parts
from aegaeon_worker.kernels.gather_pieces import gather_pieces
from aegaeon_worker.kv.device_extents import pieces_for
from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.kv.pull import Pull
from benchmarks.gpu_node import GIB, KV_8B, MIB, GpuNode
from benchmarks.handoff_lender import SEED, SMALL, TOKENS
from benchmarks.handoff_steps import DecodeSteps
from benchmarks.machine import describe_command, describe_machine
from benchmarks.report import Figure, Report, Target

_NBYTES = KV_8B.blocks_for(TOKENS) * KV_8B.block_nbytes
_ROUNDS, _DELAYS = 8, 3
_BARE = "bare copies of whole runs"
#: Programs and warps of each: the first that reaches the link costs steps least.
_SHAPES = ((16, 4), (32, 4), (64, 4), (128, 4), (264, 4), (32, 8), (64, 8), (132, 8))
#: What the issue asks for.
_COPY_SHARE, _DELAY_MS = 1.3, 1.0


class Reader:
    """The process that goes on with the KV, and the other one behind a pipe."""

    def __init__(self, stack: ExitStack, folder: Path, index: int) -> None:
        for name in ("lender", "reader", "offers"):
            (folder / name).mkdir()
        offers = folder / "offers"
        command = [sys.executable, "-m", "benchmarks.handoff_lender", "0"]
        self._lender = stack.enter_context(
            subprocess.Popen(
                [*command, str(folder / "lender"), str(offers)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(self._end)
        self.node = GpuNode(
            stack,
            folder / "reader",
            6 * GIB,
            (1, 64 * MIB),
            GIB,
            index=index,
            peers=(offers, False),
        )
        self.model = self.node.add_model("a", SMALL, KV_8B, SEED)
        assert self._answer() == "ready"

    def place(self, sequence: int) -> KvPlace:
        """Where the other process offers a sequence that it has written."""
        assert self._lender.stdin is not None
        self._lender.stdin.write(f"{sequence}\n")
        self._lender.stdin.flush()
        tokens, nbytes, offer = json.loads(self._answer())
        return KvPlace(tokens, nbytes, (), offer=offer)

    def begin(self, sequence: int, place: KvPlace) -> Pull:
        """Begin to pull it, as a command of the scheduler does."""
        self.node.memory.add_sequence(sequence, "a", place)
        pull = self.model.kv[sequence].pull
        assert pull is not None
        return pull

    def go_on(self, pull: Pull, *, wait: bool) -> bool:
        """What an engine does between two steps; whether the KV is there."""
        memory = self.node.memory
        if not memory.pulls.under_way and not pull.over and (wait or self.node.inbox.qsize()):
            memory.pulls.answered(self.node.inbox.get(timeout=10.0))  # type: ignore[arg-type]
        memory.pulls.advance(wait=wait)
        assert not pull.refusal, pull.refusal
        return pull.landed

    def end(self, sequence: int) -> None:
        """Check every byte, and make room."""
        self.node.check_kv(self.model, sequence, sequence)
        self.node.memory.free(sequence)

    def _answer(self) -> str:
        assert self._lender.stdout is not None
        line: str = self._lender.stdout.readline()
        return line.strip()

    def _end(self) -> None:
        assert self._lender.stdin is not None
        self._lender.stdin.close()
        self._lender.wait(timeout=30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    index = min(1, torch.cuda.device_count() - 1)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="aegaeon-bench-") as folder, ExitStack() as stack:
        torch.cuda.set_device(index)
        reader = Reader(stack, Path(folder), index)
        figures += _hand_offs(reader)
        figures += _raw(reader)
        figures += _beside_steps(reader)
    ways = f"cuda:0 to cuda:{index}, two processes" if index else "one GPU, two processes"
    report = Report(
        title="Hand-off from device to device",
        date=datetime.now(UTC).date().isoformat(),
        command=describe_command("benchmarks.gpu_handoff"),
        machine=describe_machine() | {"gpu": torch.cuda.get_device_name(index), "way": ways},
        versions={name: version(name) for name in ("torch", "triton", "cuda-bindings")},
        settings={"KV": f"{TOKENS} tokens, {_NBYTES} bytes in {KV_8B.blocks_for(TOKENS)} blocks"},
        figures=figures,
        targets=_targets({figure.name: figure for figure in figures}),
    )
    report.write(options.results, "gpu-handoff" if index else "gpu-handoff-one-gpu")
    print(report.markdown())
    if not all(target.met for target in report.targets):
        raise SystemExit(1)


def _hand_offs(reader: Reader) -> list[Figure]:
    """From the command to the last byte; the first one maps the other process's chunks as well."""
    first: list[float] = []
    whole: dict[str, list[float]] = {"in runs": [], "scattered": []}
    issue: dict[str, list[float]] = {"in runs": [], "scattered": []}
    for sequence in range(2 * _ROUNDS + 2):
        place = reader.place(sequence)
        torch.cuda.synchronize()
        start = time.perf_counter()
        pull = reader.begin(sequence, place)
        issued = time.perf_counter()
        while not reader.go_on(pull, wait=True):
            pass
        elapsed = (time.perf_counter() - start) * 1e3
        reader.end(sequence)
        if sequence < 2:
            first.append(elapsed)
            continue
        kind = "scattered" if sequence % 2 else "in runs"
        whole[kind].append(elapsed)
        issue[kind].append((issued - start) * 1e3)
    return [
        Figure("first hand-offs", "ms", first),
        *(Figure(f"hand-off, blocks {kind}", "ms", times) for kind, times in whole.items()),
        *(Figure(f"issuing it, blocks {kind}", "ms", times) for kind, times in issue.items()),
    ]


def _raw(reader: Reader) -> list[Figure]:
    """The same bytes by bare copies and kernels, without anything around them."""
    place = reader.place(100)
    pull = reader.begin(100, place)
    while not reader.go_on(pull, wait=True):
        pass
    ways = _ways(reader, place)
    figures = [Figure(name, "ms", _timed(way)) for name, way in ways.items()]
    for priority in (0, -1):
        steps = DecodeSteps(reader.node.device.torch_device, priority)
        figures += _delays(steps, ways, f"graph of priority {priority}")
    reader.end(100)
    return figures


def _ways(reader: Reader, place: KvPlace) -> dict[str, Callable[[], object]]:
    """Ways to copy an offer to where it was copied already, on the current stream."""
    node, borrowing = reader.node, reader.node.memory.pulls._borrowing
    assert borrowing is not None
    offer = borrowing.read(place.offer)
    assert offer is not None
    peer = borrowing.lender(place.offer, offer).memory
    assert isinstance(peer, CudaPeer)
    base = node.device.address_of(reader.model.kv._range)
    pieces = pieces_for(offer.extents, node.memory.block_table(100), KV_8B.block_nbytes)
    whole = pieces + torch.tensor([peer.base, base, 0])
    whose, begins, sizes = cut_parts(whole[:, 0], whole[:, 2], KV_8B.block_nbytes)
    targets = whole[whose, 1] + begins - whole[whose, 0]
    blocks = torch.stack([begins, targets, sizes], dim=1)
    device = node.device.torch_device

    def copies(pieces: torch.Tensor) -> None:
        stream = torch.cuda.current_stream(device).cuda_stream
        for source, target, nbytes in pieces.tolist():
            node.driver._call("cuMemcpyDtoDAsync", target, source, nbytes, stream)

    def in_parts() -> None:
        for first in range(0, len(blocks), 40):
            gather_pieces(blocks[first : first + 40], device)

    ways: dict[str, Callable[[], object]] = {
        _BARE: partial(copies, whole),
        "bare copies of single blocks": partial(copies, blocks),
        "kernels of 40 blocks each": in_parts,
    }
    for programs, warps in _SHAPES:
        name = f"kernel of {programs} programs of {warps} warps, single blocks"
        ways[name] = partial(gather_pieces, blocks, device, programs=programs, warps=warps)
    return ways


def _timed(way: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(_ROUNDS + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        way()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return times[1:]


def _delays(
    steps: DecodeSteps, ways: Mapping[str, Callable[[], object]], beside: str
) -> list[Figure]:
    """By how much each way delays a step, and what a step lasts without."""
    steps.start()
    usual = statistics.median(steps.run() for _ in range(50))
    figures = [Figure(f"step alone, {beside}", "ms", [usual])]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for name, way in ways.items():
        longest = []
        for _ in range(_DELAYS):
            steps.run()
            with torch.cuda.stream(stream):
                way()
            longest.append(max(steps.run() for _ in range(4)) - usual)
        figures.append(Figure(f"delay by {name}, {beside}", "ms", longest))
    steps.stop()
    return figures


def _beside_steps(reader: Reader) -> list[Figure]:
    """Decode steps, with a hand-off beginning in the middle of them, and without."""
    steps = DecodeSteps(reader.node.device.torch_device)
    steps.start()
    alone = [steps.run() for _ in range(200)][5:]
    steps.stop()
    beside, whole = [], []
    for sequence in range(200, 200 + 2 * _ROUNDS):
        place = reader.place(sequence)
        steps.start()
        for _ in range(5):
            steps.run()
        start = time.perf_counter()
        pull = reader.begin(sequence, place)
        while not pull.landed:
            beside.append(steps.run())
            reader.go_on(pull, wait=False)
        whole.append((time.perf_counter() - start) * 1e3)
        steps.stop()
        reader.end(sequence)
    usual = statistics.median(alone)
    return [
        Figure("decode step alone", "ms", alone),
        Figure("decode step beside a hand-off", "ms", beside),
        Figure("longest delay of a step alone", "ms", [max(alone) - usual]),
        Figure("longest delay of a step beside a hand-off", "ms", [max(beside) - usual]),
        Figure("hand-off beside steps, seen at the end of one", "ms", whole),
    ]


def _targets(figures: dict[str, Figure]) -> list[Target]:
    best = figures[_BARE].median
    names = ("hand-off, blocks in runs", "hand-off, blocks scattered")
    delay = "longest delay of a step beside a hand-off"
    return [
        *(
            Target(name, figures[name].median, "ms", _COPY_SHARE * best, at_least=False)
            for name in names
        ),
        Target(delay, figures[delay].median, "ms", _DELAY_MS, at_least=False),
    ]


if __name__ == "__main__":
    main()
