"""The shape of one KV block."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

#: Tokens in one block, for every model.
BLOCK_TOKENS = 16


@dataclass(frozen=True)
class KvShape:
    """KV geometry of a model on one worker; blocks of one shape are interchangeable.

    A block is block-major: ``[num_layers, 2 (K, V), BLOCK_TOKENS, num_kv_heads, head_dim]``,
    contiguous, so moving a block is one copy.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        """Dimensions of one block."""
        return (self.num_layers, 2, BLOCK_TOKENS, self.num_kv_heads, self.head_dim)

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block."""
        layers, two, tokens, heads, dim = self.block_shape
        return layers * two * tokens * heads * dim * self.dtype.itemsize

    def content(self, fingerprint: str) -> int:
        """A number of 64 bits for KV of this shape that the weights of ``fingerprint`` compute.

        Two workers get the same exactly when each can go on with the other's KV.
        """
        digest = hashlib.sha256(f"{fingerprint}\0{self.block_shape}\0{self.dtype}".encode())
        return int.from_bytes(digest.digest()[:8], "little")

    @staticmethod
    def blocks_for(num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // BLOCK_TOKENS)
