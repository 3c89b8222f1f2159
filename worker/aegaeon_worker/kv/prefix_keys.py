"""Names of KV blocks by the tokens that lead to them."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from aegaeon_worker.kv.shape import BLOCK_TOKENS


@dataclass(frozen=True)
class Prefix:
    """What a sequence's KV depends on, besides the weights.

    ``tokens`` may grow at its end while the sequence lives. Sequences share KV only with those of
    the same ``salt``.
    """

    tokens: Sequence[int]
    salt: str = ""


class PrefixKeys:
    """One key per full block: a digest of the block's tokens and the key before it.

    So equal keys mean equal tokens from the first one on. SHA-256, because whoever could make two
    prompts meet in a shorter digest would read other callers' KV.
    """

    def __init__(self, content: int, prefix: Prefix) -> None:
        """``content`` names weights, layout and numeric type, as ``KvShape.content``."""
        self._tokens = prefix.tokens
        root = content.to_bytes(8, "little") + prefix.salt.encode()
        self._keys = [hashlib.sha256(root).digest()]

    @property
    def num_tokens(self) -> int:
        """Tokens known so far."""
        return len(self._tokens)

    @property
    def num_full(self) -> int:
        """Blocks that the tokens known so far fill."""
        return len(self._tokens) // BLOCK_TOKENS

    @property
    def num_reusable(self) -> int:
        """Blocks that need not be computed: the logits of the last token are wanted always."""
        return max(0, len(self._tokens) - 1) // BLOCK_TOKENS

    def __getitem__(self, block: int) -> bytes:
        """Key of a full block, by its index."""
        while len(self._keys) <= block + 1:
            start = (len(self._keys) - 1) * BLOCK_TOKENS
            tokens = array("I", self._tokens[start : start + BLOCK_TOKENS])
            self._keys.append(hashlib.sha256(self._keys[-1] + tokens.tobytes()).digest())
        return self._keys[block + 1]
