"""A worker's memory on a real GPU, with contents that can be checked byte by byte."""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import torch

from aegaeon_worker.device.cuda import CudaDevice
from aegaeon_worker.device.cuda_driver import BoundDriver
from aegaeon_worker.device.gpu_lock import GpuLock
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.memory_manager import MemoryManager
from aegaeon_worker.kv.model_memory import ModelMemory
from aegaeon_worker.kv.shape import KvShape
from aegaeon_worker.peers.lender import LenderGone, PullAnswered
from aegaeon_worker.peers.lending import SaveOffer
from aegaeon_worker.peers.links import ALONE, PeerLinks
from aegaeon_worker.weights.cache import WeightCache
from aegaeon_worker.weights.layout import TensorSpec, WeightLayout
from aegaeon_worker.weights.resident import ResidentWeights

MIB = 1 << 20
GIB = 1 << 30
#: The KV of a model with 8.2 billion parameters: 36 layers, 8 heads of 128.
KV_8B = KvShape(36, 8, 128, torch.bfloat16)
#: Odd, so that every 64-bit word of a pattern differs from its neighbours.
_STRIDE = 0x9E3779B97F4A7C15 - (1 << 64)


def transformer_layout(hidden: int, intermediate: int, layers: int, vocab: int) -> WeightLayout:
    """The stages of a decoder in bfloat16, a quarter as many KV heads as query heads."""
    shapes = {
        "q": (hidden, hidden),
        "kv": (hidden // 2, hidden),
        "o": (hidden, hidden),
        "gate_up": (2 * intermediate, hidden),
        "down": (hidden, intermediate),
    }
    groups = [("embeddings", {"embed": (vocab, hidden)})]
    groups += [
        (f"layer.{i}", {f"{i}.{name}": shape for name, shape in shapes.items()})
        for i in range(layers)
    ]
    groups.append(("head", {"lm_head": (vocab, hidden)}))
    return WeightLayout.place(
        (stage, [TensorSpec(name, torch.bfloat16, shape) for name, shape in tensors.items()])
        for stage, tensors in groups
    )


#: 8.2 billion parameters, 16.4 GB.
LAYOUT_8B = transformer_layout(4096, 12288, 36, 151936)


def pattern(count: int, seed: int, device: torch.device) -> torch.Tensor:
    """int64 [count], different for every seed."""
    return torch.arange(count, device=device).mul_(_STRIDE).add_(seed)


class GpuNode:
    """One GPU with its host memory; ``memory`` is what a worker's engine would use."""

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        pool_nbytes: int,
        slabs: tuple[int, int],
        cache_nbytes: int,
        *,
        index: int = 0,
        peers: tuple[Path, bool] | None = None,
    ) -> None:
        """On ``cuda:index``; ``peers``: the folder of its node's offers, and whether it lends."""
        self.driver = BoundDriver(index)
        stack.callback(self.driver.close)
        self.lock = GpuLock(folder, self.driver.uuid, self.driver.name)
        stack.callback(self.lock.release)
        self.device = CudaDevice(self.driver, pool_nbytes // (64 * MIB), 64 * MIB)
        stack.callback(self.device.close)
        kv_folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        self.slabs = HostSlabs(kv_folder, *slabs, self.device)
        stack.callback(self.slabs.close)
        self.cache = WeightCache(folder, cache_nbytes, self.device)
        stack.callback(self.cache.close)
        self.inbox: queue.SimpleQueue[PullAnswered | LenderGone | SaveOffer] = queue.SimpleQueue()
        links = ALONE
        if peers is not None:
            root, lends = peers
            links = PeerLinks.open(root, int(lends), self.device, self.inbox.put, lends=lends)
            stack.callback(links.close)
        self.memory = MemoryManager(
            self.device, self.slabs, lending=links.lending, borrowing=links.borrowing
        )
        stack.callback(self.memory.close)

    def add_model(self, name: str, layout: WeightLayout, shape: KvShape, seed: int) -> ModelMemory:
        """A packed model in the host cache, its weights a pattern."""

        def fill(views: Mapping[str, torch.Tensor]) -> None:
            for slot in layout.slots():
                words = views[slot.spec.name].view(-1).view(torch.int64)
                words.copy_(pattern(words.numel(), seed + slot.offset, torch.device("cpu")))

        weights = ResidentWeights(
            self.device,
            name,
            layout,
            lambda: self.cache.acquire(name, f"{name}-{seed}-{layout.nbytes}", layout, fill),
        )
        weights.pin()
        return self.memory.add_model(weights, shape, f"{name}-{seed}")

    def check_weights(self, model: ModelMemory, seed: int) -> None:
        """Every byte on the device is the packed file's."""
        model.weights.require_resident()
        model.weights.gate.wait_all()
        tensors = model.weights.tensors()
        for slot in model.weights.layout.slots():
            words = tensors[slot.spec.name].view(-1).view(torch.int64)
            expected = pattern(words.numel(), seed + slot.offset, words.device)
            assert torch.equal(words, expected), f"{model.name}: {slot.spec.name} differs"

    def write_kv(self, model: ModelMemory, sequence: int, seed: int, tokens: int) -> None:
        """Fill the blocks of a sequence that has room, and commit them."""
        for block, expected in self._blocks(model, sequence, seed):
            block.copy_(expected)
        self.memory.commit(sequence, tokens)

    def check_kv(self, model: ModelMemory, sequence: int, seed: int) -> None:
        """Every byte of a sequence's blocks is what was written."""
        for block, expected in self._blocks(model, sequence, seed):
            assert torch.equal(block, expected), f"KV of sequence {sequence} differs"

    def _blocks(
        self, model: ModelMemory, sequence: int, seed: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        words = model.kv.shape.block_nbytes // 8
        expected = pattern(words, 0, self.device.torch_device)
        for place, block in enumerate(model.kv.block_table(sequence)):
            yield (
                model.kv.tensor[block].view(-1).view(torch.int64),
                expected + (seed * 1000 + place),
            )


@contextmanager
def gpu_node(
    folder: Path,
    pool_nbytes: int,
    slabs: tuple[int, int] = (4, 256 * MIB),
    cache_nbytes: int = 8 * GIB,
) -> Iterator[GpuNode]:
    """Open a node over ``folder``; that it gives all device memory back is checked at the end.

    Packed files stay in ``folder`` for the next node.
    """
    torch.empty(1, device="cuda")
    before, _ = torch.cuda.mem_get_info()
    with ExitStack() as stack:
        yield GpuNode(stack, folder, pool_nbytes, slabs, cache_nbytes)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    after, _ = torch.cuda.mem_get_info()
    # Libraries that this process has used for the first time keep workspaces of some megabytes.
    assert before - after < 512 * MIB, f"{before - after} bytes of device memory were not returned"


def timed_ms(action: Callable[[], object]) -> float:
    """Wall time of an action and of all device work it causes."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def resident_nbytes() -> int:
    """Private memory of this process, shared mappings left out."""
    info = psutil.Process().memory_info()
    return int(info.rss - info.shared)
