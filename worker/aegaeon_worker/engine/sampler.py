"""From logits to tokens."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from aegaeon_worker.engine.sequence import Sequence


@torch.inference_mode()
def sample_greedy(logits: torch.Tensor, sequences: Seq[Sequence]) -> list[int]:
    """The most probable token per row of ``logits`` [R, vocab]; the lowest id among equals.

    Tokens that would end a sequence before its minimum are excluded. ``logits`` is consumed.
    """
    for row, sequence in enumerate(sequences):
        if not sequence.may_stop and sequence.stop.stop_ids:
            logits[row, list(sequence.stop.stop_ids)] = -torch.inf
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    return tokens
