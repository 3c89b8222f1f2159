"""Which tokens a sequence has, kept up to date as it grows."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq

import torch


class TokenCounts:
    """Distinct tokens in the order of their first appearance, and how often each was generated.

    Nothing else has to be kept or moved for penalties: they can be counted anew from the tokens.
    """

    __slots__ = ("_generated", "_ids", "_seen", "_slots")

    def __init__(self, prompt: Seq[int]) -> None:
        """Count a prompt's tokens as there, but not generated; may be empty."""
        self._ids = array("q", dict.fromkeys(prompt))
        self._slots = {token: slot for slot, token in enumerate(self._ids)}
        self._generated = array("q", bytes(8 * len(self._ids)))
        self._seen = 0

    def update(self, tokens: Seq[int], start: int) -> None:
        """Count what ``tokens[start:]`` has more than at the last call."""
        for position in range(start + self._seen, len(tokens)):
            token = tokens[position]
            slot = self._slots.setdefault(token, len(self._ids))
            if slot == len(self._ids):
                self._ids.append(token)
                self._generated.append(0)
            self._generated[slot] += 1
        self._seen = len(tokens) - start

    def __len__(self) -> int:
        return len(self._ids)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and how often each was generated, int64, in shared memory: copy, and let go of them
        before the next `update`. There must be a token."""
        ids = torch.frombuffer(self._ids, dtype=torch.int64)
        return ids, torch.frombuffer(self._generated, dtype=torch.int64)
