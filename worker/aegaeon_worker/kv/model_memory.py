"""One model's share of the device: its weights and its sequences' KV."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from aegaeon_worker.device.interface import Device
from aegaeon_worker.kv.errors import PoolTooSmall
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.shape import BLOCK_TOKENS, KvShape
from aegaeon_worker.kv.store import KvStore
from aegaeon_worker.kv.transfers import TransferMeter, Transfers
from aegaeon_worker.weights.resident import ResidentWeights

#: Large enough for the link's full speed, small enough that a step on a CPU hardly notices.
_PREFETCH_NBYTES = 32 << 20


class ModelMemory:
    """Weights and KV of one model, and when the model was last planned."""

    def __init__(
        self,
        device: Device,
        weights: ResidentWeights,
        shape: KvShape,
        fingerprint: str,
        slabs: HostSlabs,
        meter: TransferMeter,
        *,
        shares: bool,
    ) -> None:
        """``PoolTooSmall`` unless the pool holds the weights and one block of KV.

        ``shares`` as ``KvStore``.
        """
        self.name = weights.name
        self.weights = weights
        self.last_planned = 0
        self._pool = device.pool
        self._meter = meter
        if self._tokens_beside_weights(shape) < BLOCK_TOKENS:
            raise PoolTooSmall(
                f"{self.name} needs {weights.layout.nbytes} bytes for weights and at least "
                f"{shape.block_nbytes} for KV, in chunks of {self._pool.chunk_nbytes}, but the "
                f"device pool has {self._pool.nbytes} bytes; give the worker more device memory",
                metadata={
                    "needed_bytes": weights.layout.nbytes + shape.block_nbytes,
                    "available_bytes": self._pool.nbytes,
                },
            )
        self.kv = KvStore(device, self.name, shape, fingerprint, slabs, meter, shares=shares)

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest sequence that fits beside the weights in an empty pool."""
        return self._tokens_beside_weights(self.kv.shape)

    def require_fit(self, sequence: int, num_tokens: int) -> None:
        """Raise ``PoolTooSmall`` if a sequence this long cannot fit even alone."""
        if num_tokens > self.max_tokens:
            needed = KvShape.blocks_for(num_tokens) * self.kv.shape.block_nbytes
            raise PoolTooSmall(
                f"sequence {sequence} of {self.name} needs KV for {num_tokens} tokens "
                f"({needed} bytes), but beside "
                f"{self.weights.layout.nbytes} bytes of weights the device pool of "
                f"{self._pool.nbytes} bytes holds only {self.max_tokens} tokens",
                metadata={
                    "needed_bytes": self.weights.layout.nbytes + needed,
                    "available_bytes": self._pool.nbytes,
                },
            )

    def missing_chunks(self, wants: Iterable[tuple[int, int]]) -> int:
        """Chunks to map for the weights, and for KV as ``KvStore.missing_chunks``."""
        weights = 0 if self.weights.mapped else self.weights.num_chunks
        return weights + self.kv.missing_chunks(wants)

    def load_weights(self) -> None:
        """As ``ResidentWeights.load``."""
        if not self.weights.resident:
            self._metered(self.weights.load)

    def prefetch_piece(self) -> None:
        """As ``ResidentWeights.load_piece``, in pieces that keep the link busy for a moment."""
        if not self.weights.resident:
            self._metered(partial(self.weights.load_piece, _PREFETCH_NBYTES))

    def _metered(self, load: Callable[[], int]) -> None:
        start_ns = time.perf_counter_ns()
        nbytes = load()
        if nbytes:
            elapsed_ns = time.perf_counter_ns() - start_ns
            self._meter.add(Transfers(weight_bytes=nbytes, weight_ns=elapsed_ns))

    def close(self) -> None:
        """Give all memory back and end both reservations."""
        self.kv.close()
        self.weights.close()

    def _tokens_beside_weights(self, shape: KvShape) -> int:
        free_chunks = self._pool.num_chunks - self.weights.num_chunks
        return max(0, free_chunks * self._pool.chunk_nbytes // shape.block_nbytes) * BLOCK_TOKENS
