"""A memory manager over tiny pools and slabs, with contents that can be checked."""

from __future__ import annotations

import queue
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from aegaeon_worker.kv.fetches import Carry
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.imports import Imported
from aegaeon_worker.kv.memory_manager import MemoryManager
from aegaeon_worker.kv.model_memory import ModelMemory
from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.kv.shape import BLOCK_TOKENS, KvShape
from aegaeon_worker.peers.lender import LenderGone, PullAnswered
from aegaeon_worker.peers.lending import SaveOffer
from aegaeon_worker.peers.links import ALONE, PeerLinks
from aegaeon_worker.weights.cache import WeightCache
from aegaeon_worker.weights.layout import TensorSpec, WeightLayout
from aegaeon_worker.weights.resident import ResidentWeights
from tests.worker.device.makers import opened

#: 512 KiB per block: four per chunk.
SHAPE = KvShape(num_layers=2, num_kv_heads=2, head_dim=1024, dtype=torch.float32)
#: 768 KiB per block: some lie across two chunks.
ODD_SHAPE = KvShape(num_layers=3, num_kv_heads=2, head_dim=1024, dtype=torch.float32)
#: Two chunks of weights.
LAYOUT = WeightLayout.place([("all", [TensorSpec("w", torch.float32, (600_000,))])])
WEIGHT_CHUNKS = 2
#: Tokens in one chunk of KV of SHAPE.
CHUNK_TOKENS = 4 * BLOCK_TOKENS


PeerWord = PullAnswered | LenderGone | SaveOffer


class Harness:
    """Writes recognisable KV, as a model would, and reads it back."""

    def __init__(
        self,
        shapes: Mapping[str, KvShape],
        *,
        num_chunks: int = 5,
        num_slabs: int = 16,
        slab_nbytes: int = 2 << 20,
        kind: str = "cpu",
        slab_dir: Path | None = None,
        carry: Carry | None = None,
        peers: tuple[int, bool] | None = None,
    ) -> None:
        """``peers`` are its index among the workers of the node, and whether it lends."""
        self._folder = tempfile.TemporaryDirectory()
        root = Path(self._folder.name)
        self._opened = opened(kind, num_chunks, shared=peers is not None and peers[1])
        self.device = self._opened.__enter__()
        self.cache = WeightCache(root, 64 << 20, self.device)
        self.slabs = HostSlabs(slab_dir or root, num_slabs, slab_nbytes, self.device)
        self.inbox: queue.SimpleQueue[PeerWord] = queue.SimpleQueue()
        self.peers = ALONE
        if peers is not None:
            index, lends = peers
            self.peers = PeerLinks.open(
                self.slabs.directory, index, self.device, self.inbox.put, lends=lends
            )
        self.memory = MemoryManager(
            self.device,
            self.slabs,
            carry,
            lending=self.peers.lending,
            borrowing=self.peers.borrowing,
        )
        self.models: dict[str, ModelMemory] = {}
        for name, shape in shapes.items():
            self.add_model(name, shape, fingerprint=name)
        self.written: dict[int, int] = {}

    def add_model(self, name: str, shape: KvShape, fingerprint: str) -> None:
        def fill(views: Mapping[str, torch.Tensor]) -> None:
            views["w"].fill_(float(sum(fingerprint.encode())))

        weights = ResidentWeights(
            self.device, name, LAYOUT, lambda: self.cache.acquire(name, fingerprint, LAYOUT, fill)
        )
        self.models[name] = self.memory.add_model(weights, shape, fingerprint)

    def start(self, sequence: int, model: str, tokens: int = 0) -> None:
        """Add a sequence and, in a turn of its own, ``tokens`` tokens of KV."""
        self.memory.add_sequence(sequence, model)
        self.written[sequence] = 0
        if tokens:
            assert self.memory.activate(model, [(sequence, tokens)]) == [sequence]
            self.append(sequence, model, tokens)

    def hand_off(self, sequence: int) -> KvPlace:
        """Leave a sequence to another worker and wait until it may be read."""
        self.memory.hand_off([sequence])
        [done] = self.memory.hand_offs.finish(wait=True)
        assert done.sequence == sequence
        return done.place

    def receive(self, sequence: int, model: str, place: KvPlace, room: int = 20) -> Imported:
        """Go on with another worker's sequence in a turn of its own, with room for more tokens."""
        self.memory.add_sequence(sequence, model, place)
        assert self.memory.activate(model, [(sequence, place.num_tokens + room)]) == [sequence]
        [imported] = self.memory.take_imports()
        assert imported.sequence == sequence
        assert imported.num_tokens == self.memory.stored_tokens(sequence)
        self.check_kv(sequence, model)
        return imported

    def hear(self, timeout_s: float = 10.0) -> PeerWord:
        """Take the next word of another worker, as an engine would."""
        match word := self.inbox.get(timeout=timeout_s):
            case PullAnswered():
                self.memory.pulls.answered(word)
            case LenderGone():
                self.memory.pulls.lender_gone(word)
            case SaveOffer():
                self.memory.save_offer(word)
        return word

    def append(self, sequence: int, model: str, tokens: int) -> None:
        """Write the KV of further tokens into blocks that are there."""
        stored = self.memory.stored_tokens(sequence)
        for position in range(stored, stored + tokens):
            self._slot(sequence, model, position).fill_(stamp(sequence, position))
        self.memory.commit(sequence, stored + tokens)
        self.written[sequence] = stored + tokens

    def check_kv(self, sequence: int, model: str) -> None:
        """Every stored token of a resident sequence has the value written for it."""
        for position in range(self.memory.stored_tokens(sequence)):
            slot = self._slot(sequence, model, position)
            assert bool((slot == stamp(sequence, position)).all()), (sequence, position)

    def check_weights(self, model: str, fingerprint: str) -> None:
        weights = self.models[model].weights
        weights.require_resident()
        weights.gate.wait_all()
        assert bool((weights.tensors()["w"] == float(sum(fingerprint.encode()))).all())

    def close(self) -> None:
        """Everything is given back."""
        self.memory.close()
        self.peers.close()
        assert self.slabs.owned == frozenset()
        self.slabs.close()
        self.cache.close()
        self._opened.__exit__(None, None, None)
        self._folder.cleanup()

    def _slot(self, sequence: int, model: str, position: int) -> torch.Tensor:
        kv = self.models[model].kv
        block = kv.block_table(sequence)[position // BLOCK_TOKENS]
        # A few values per token and layer are enough to recognise it, and cheap to write.
        return kv.tensor[block][:, :, position % BLOCK_TOKENS, :, ::512]


def stamp(sequence: int, position: int) -> float:
    return float(sequence * 1000 + position + 1)


MakeHarness = Callable[..., Harness]
