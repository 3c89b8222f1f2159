"""The shape of one KV block."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import torch

from aegaeon_worker.device.interface import VirtualRange

#: Tokens in one block, for every model.
BLOCK_TOKENS = 16
#: Raise it when the meaning of a block's bytes changes: workers of different releases then go on
#: with each other's sequences, but not with their KV.
KV_VERSION = 1


def kv_range(model: str) -> str:
    """What the device calls the range of a model's KV."""
    return f"KV of {model}"


@dataclass(frozen=True)
class KvShape:
    """KV geometry of a model on one worker; blocks of one shape are interchangeable.

    A block is block-major: ``[num_layers, 2 (K, V), BLOCK_TOKENS, num_kv_heads, head_dim]``,
    contiguous, so moving a block is one copy.
    """

    num_layers: int
    num_kv_heads: int
    """Those of this worker."""
    head_dim: int
    dtype: torch.dtype
    pieces: int = 1
    """Different pieces of a token's KV over the ranks of an engine; 1 is all of it on each."""

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        """Dimensions of one block."""
        return (self.num_layers, 2, BLOCK_TOKENS, self.num_kv_heads, self.head_dim)

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block."""
        layers, two, tokens, heads, dim = self.block_shape
        return layers * two * tokens * heads * dim * self.dtype.itemsize

    @property
    def host_nbytes(self) -> int:
        """Bytes of one block in host memory: the pieces of all ranks, one after another."""
        return self.block_nbytes * self.pieces

    @property
    def rows(self) -> int:
        """Rows of a piece's heads in one block."""
        layers, two, tokens, _, _ = self.block_shape
        return layers * two * tokens

    def in_pieces(self, pieces: int) -> KvShape | None:
        """The same KV over another number of ranks; none if its heads do not divide."""
        heads = self.num_kv_heads * self.pieces
        if pieces < 1 or heads % pieces:
            return None
        return replace(self, num_kv_heads=heads // pieces, pieces=pieces)

    def tensor_over(self, blocks: VirtualRange, pool_nbytes: int) -> torch.Tensor:
        """[num_blocks, *block_shape]: as many blocks as the whole pool could hold."""
        num_blocks = pool_nbytes // self.block_nbytes
        return blocks.tensor(0, self.dtype, (num_blocks, *self.block_shape))

    def content(self, fingerprint: str) -> int:
        """A number of 64 bits for KV of this shape that the weights of ``fingerprint`` compute.

        Two workers get the same exactly when each can go on with the other's KV.
        """
        shape = f"{KV_VERSION}\0{self.block_shape}\0{self.pieces}"
        digest = hashlib.sha256(f"{fingerprint}\0{shape}\0{self.dtype}".encode())
        return int.from_bytes(digest.digest()[:8], "little")

    @staticmethod
    def blocks_for(num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // BLOCK_TOKENS)
