"""What the GPU memory is measured by; every case checks the bytes that it moved."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from aegaeon_worker.device import libc
from aegaeon_worker.device.interface import CopyLane
from aegaeon_worker.kv.model_memory import ModelMemory
from benchmarks.gpu_node import (
    GIB,
    KV_8B,
    LAYOUT_8B,
    MIB,
    GpuNode,
    gpu_node,
    resident_nbytes,
    timed_ms,
    transformer_layout,
)
from benchmarks.report import Figure

_ROUNDS = 5
_SWITCHES = 8
_CYCLES = 200


def link_speed(folder: Path) -> list[Figure]:
    """Copies of 4 GiB between torch's own pinned memory and a plain tensor."""
    host = torch.ones(4 * GIB, dtype=torch.uint8, pin_memory=True)
    device = torch.zeros(4 * GIB, dtype=torch.uint8, device="cuda")
    moves: dict[str, Callable[[], object]] = {
        "link, host to device": lambda: device.copy_(host, non_blocking=True),
        "link, device to host": lambda: host.copy_(device, non_blocking=True),
    }
    figures = []
    for name, move in moves.items():
        move()
        speeds = [host.nbytes / timed_ms(move) / 1e6 for _ in range(_ROUNDS)]
        figures.append(Figure(name, "GB/s", speeds))
    return figures


def map_cost(folder: Path) -> list[Figure]:
    """Mapping and unmapping 16 GiB in 64 MiB chunks."""
    with gpu_node(folder, 16 * GIB) as node:
        target = node.device.reserve("a", 16 * GIB, CopyLane.WEIGHTS)
        other = node.device.reserve("b", 16 * GIB, CopyLane.WEIGHTS)
        every = range(node.device.pool.num_chunks)
        maps, unmaps = [], []
        first = timed_ms(partial(target.map, every))
        target.unmap(every)
        elsewhere = timed_ms(partial(other.map, every))
        other.unmap(every)
        for _ in range(_ROUNDS):
            maps.append(timed_ms(partial(target.map, every)))
            unmaps.append(timed_ms(partial(target.unmap, every)))
    return [
        Figure("map 16 GiB of new chunks", "ms", [first]),
        Figure("map 16 GiB of used chunks at new addresses", "ms", [elsewhere]),
        Figure("map 16 GiB", "ms", maps),
        Figure("unmap 16 GiB", "ms", unmaps),
    ]


def second_process(folder: Path) -> list[Figure]:
    """Another process is refused while this one has the device."""
    code = (
        "import sys; from pathlib import Path; from aegaeon_worker.device.gpu_lock import GpuLock\n"
        "GpuLock(Path(sys.argv[1]), sys.argv[2], 'the GPU')"
    )
    with gpu_node(folder, GIB) as node:
        command = [sys.executable, "-c", code, str(folder), node.driver.uuid]
        other = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "belongs to another worker, process" in other.stderr, other.stderr
    return []


def cold_switch(folder: Path) -> list[Figure]:
    """Two models of 16.4 GB that do not fit together, one after the other, and while decoding."""
    weights = LAYOUT_8B.nbytes
    with gpu_node(folder, 2 * weights * 3 // 5, cache_nbytes=2 * weights + GIB) as node:
        models = [node.add_model(name, LAYOUT_8B, KV_8B, seed) for seed, name in enumerate("ab")]
        assert node.device.pins.wait() > 2 * weights, "host memory could not be pinned"
        totals, overlapped = [], []
        for number in range(_SWITCHES):
            model = models[number % 2]
            totals.append(timed_ms(partial(node.memory.activate, model.name, [])))
            node.check_weights(model, number % 2)
        for number in range(_SWITCHES):
            model = models[number % 2]
            overlapped.append(timed_ms(partial(_switch_and_compute, node, model)))
    return [
        Figure("cold switch of 16.4 GB", "ms", totals[1:]),
        Figure("cold switch of 16.4 GB with a pass over 512 rows behind it", "ms", overlapped[1:]),
    ]


def _switch_and_compute(node: GpuNode, model: ModelMemory) -> None:
    node.memory.activate(model.name, [])
    _pass(model, 512)


def _pass(model: ModelMemory, rows: int) -> None:
    """One product with every weight, each layer behind its gate."""
    tensors = model.weights.tensors()
    for stage in model.weights.layout.stages:
        model.weights.gate.wait(stage.name)
        for slot in stage.slots:
            weight = tensors[slot.spec.name]
            torch.nn.functional.linear(weight.new_ones(rows, weight.shape[1]), weight)


def kv_swap(folder: Path) -> list[Figure]:
    """32 sequences of 2,048 tokens out and in, their blocks in runs and scattered."""
    tokens, count = 2048, 32
    nbytes = KV_8B.blocks_for(tokens) * KV_8B.block_nbytes * count
    small = transformer_layout(256, 512, 2, 1024)
    figures = []
    with gpu_node(folder, nbytes + 2 * GIB, slabs=(12, GIB)) as node:
        model = node.add_model("a", small, KV_8B, 1)
        assert node.device.pins.wait() > 12 * GIB, "host memory could not be pinned"
        for layout, step in (("in runs", tokens), ("scattered", 16)):
            outs, ins = [], []
            for sequence in range(count):
                node.memory.add_sequence(sequence, "a")
            wants = [(sequence, tokens) for sequence in range(count)]
            for room in range(step, tokens + 1, step):
                node.memory.activate("a", [(sequence, room) for sequence in range(count)])
            for sequence in range(count):
                node.write_kv(model, sequence, sequence, tokens)
            for _ in range(_ROUNDS):
                outs.append(nbytes / timed_ms(partial(_swap_out, node, count)) / 1e6)
                ins.append(nbytes / timed_ms(partial(node.memory.activate, "a", wants)) / 1e6)
                for sequence in range(count):
                    node.check_kv(model, sequence, sequence)
                    # Written anew, so that it has to go out again.
                    node.memory.commit(sequence, 0)
                    node.memory.commit(sequence, tokens)
            for sequence in range(count):
                node.memory.free(sequence)
            figures.append(Figure(f"KV out, blocks {layout}", "GB/s", outs))
            figures.append(Figure(f"KV in, blocks {layout}", "GB/s", ins))
    return figures


def _swap_out(node: GpuNode, count: int) -> None:
    for sequence in range(count):
        node.memory.preempt(sequence)


def cycles(folder: Path) -> list[Figure]:
    """200 cycles of three models that do not fit together; memory must stay flat."""
    shapes = [(1024, 4096, 24), (2048, 6144, 12), (2560, 8192, 10)]
    layouts = [transformer_layout(h, i, n, 32000) for h, i, n in shapes]
    pool = sum(layout.nbytes for layout in layouts) * 3 // 4
    tokens, switches = 256, []
    free, pinned, resident = [], [], []
    with gpu_node(folder, pool, cache_nbytes=8 * GIB) as node:
        models = [node.add_model(f"m{i}", layout, KV_8B, i) for i, layout in enumerate(layouts)]
        node.device.pins.wait()
        for i, model in enumerate(models):
            node.memory.add_sequence(i, model.name)
            node.memory.activate(model.name, [(i, tokens)])
            node.write_kv(model, i, i, tokens)
        for _ in range(_CYCLES):
            for i, model in enumerate(models):
                turn = partial(node.memory.activate, model.name, [(i, tokens)])
                switches.append(timed_ms(turn))
                node.check_weights(model, i)
                node.check_kv(model, i, i)
            free.append(torch.cuda.mem_get_info()[0] / MIB)
            pinned.append(node.device.pins.nbytes / MIB)
            resident.append(resident_nbytes() / MIB)
        node.memory.audit()
    for name, values in (("device", free), ("pinned", pinned), ("process", resident)):
        settled = values[_CYCLES // 10 :]
        drift = max(settled) - min(settled)
        assert drift <= 32, f"{name} memory moved by {drift} MiB over {_CYCLES} cycles"
    return [
        Figure("switch among three models of 0.8 to 1.2 GB", "ms", switches[3:]),
        Figure("free device memory over 200 cycles", "MiB", free[_CYCLES // 10 :]),
        Figure("pinned memory over 200 cycles", "MiB", pinned[_CYCLES // 10 :]),
        Figure("process memory over 200 cycles", "MiB", resident[_CYCLES // 10 :]),
    ]


def graph_replay(folder: Path) -> list[Figure]:
    """A captured graph is right after all memory under it was replaced."""
    layout = transformer_layout(2048, 6144, 12, 32000)
    with gpu_node(folder, layout.nbytes * 3 // 2) as node:
        first, _ = (node.add_model(name, layout, KV_8B, seed) for seed, name in enumerate("ab"))
        node.device.pins.wait()
        words = [tensor.view(-1).view(torch.int64) for tensor in first.weights.tensors().values()]
        out = torch.zeros((), dtype=torch.int64, device="cuda")

        def compute() -> None:
            out.zero_()
            for tensor in words:
                out.add_(tensor.sum())

        node.memory.activate("a", [])
        first.weights.gate.wait_all()
        compute()
        expected = int(out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            compute()
        moves = []
        for _ in range(_ROUNDS):
            node.memory.activate("b", [])
            moves.append(timed_ms(partial(node.memory.activate, "a", [])))
            first.weights.gate.wait_all()
            graph.replay()
            assert int(out) == expected, "the graph computed something else after a switch"
    return [Figure("switch back to a model with a captured graph", "ms", moves)]


def decode_beside_prefetch(folder: Path) -> list[Figure]:
    """Passes of 8 rows over one 16.4 GB model, alone and while another one is prefetched."""
    weights = LAYOUT_8B.nbytes
    with gpu_node(folder, 2 * weights + 2 * GIB, cache_nbytes=2 * weights + GIB) as node:
        first, second = (
            node.add_model(name, LAYOUT_8B, KV_8B, seed) for seed, name in enumerate("ab")
        )
        node.device.pins.wait()
        node.memory.activate("a", [])
        # Captured, as a worker decodes: launches one by one wait for the link that copies fill.
        step = _captured(partial(_pass, first, 8))
        alone = [_computed_ms(step) for _ in range(50)]
        beside = []
        start = time.perf_counter()
        while not (second.weights.resident and second.weights.gate.done):
            node.memory.prefetch("b")
            beside.append(_computed_ms(step))
        took_ms = (time.perf_counter() - start) * 1e3
        ready = timed_ms(partial(node.memory.activate, "b", []))
        node.check_weights(second, 1)
    return [
        Figure("decode pass alone", "ms", alone),
        Figure("decode pass beside a prefetch", "ms", beside),
        Figure("prefetch of 16.4 GB beside decode", "ms", [took_ms]),
        Figure("switch to a prefetched model", "ms", [ready]),
    ]


def _computed_ms(action: Callable[[], object]) -> float:
    """Wall time of an action and its compute, whatever is being copied meanwhile."""
    stream = torch.cuda.current_stream()
    start = time.perf_counter()
    action()
    stream.synchronize()
    return (time.perf_counter() - start) * 1e3


def _captured(action: Callable[[], object]) -> Callable[[], object]:
    action()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action()
    graph.replay()
    return graph.replay


def pinning_beside_compute(folder: Path) -> list[Figure]:
    """The longest small step while 8 GiB of shared memory are pinned on another thread."""
    nbytes = 8 * GIB
    with gpu_node(folder, GIB) as node, tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(nbytes)
        address = libc.map_file(file.fileno(), 0, nbytes, writable=True)
        libc.advise(address, nbytes, libc.MADV_POPULATE_WRITE)
        matrix = torch.ones(512, 512, device="cuda")
        step = partial(timed_ms, partial(torch.mm, matrix, matrix))
        quiet = [step() for _ in range(200)]
        node.device.pins.wait()
        start = time.perf_counter()
        node.device.pin_host(address, nbytes, read_only=False)
        waiter = threading.Thread(target=node.device.pins.wait)
        waiter.start()
        busy = []
        while waiter.is_alive():
            busy.append(step())
        took_ms = (time.perf_counter() - start) * 1e3
        waiter.join()
        node.device.unpin_host(address)
        libc.unmap(address, nbytes)
    return [
        Figure("pinning 8 GiB", "ms", [took_ms]),
        Figure("longest small step before", "ms", [max(quiet[10:])]),
        Figure("longest small step while pinning", "ms", [max(busy)]),
    ]
