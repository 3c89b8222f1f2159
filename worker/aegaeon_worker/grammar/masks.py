"""Masks of a step's sequences, made while the model computes the logits that they apply to."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from aegaeon.errors import AegaeonError, EngineError
from aegaeon_worker.device.host_link import upload
from aegaeon_worker.engine.sequence import Sequence


class Masks:
    """Makes masks on a thread of its own, which runs no torch operations."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="masks")

    def begin(self, sequences: Seq[Sequence]) -> PendingMasks | None:
        """Start on the masks for the next token of each; None when nothing is constrained."""
        rows = [row for row, sequence in enumerate(sequences) if sequence.text is not None]
        if not rows:
            return None
        constrained = [sequences[row] for row in rows]
        return PendingMasks(rows, self._thread.submit(_masks, constrained))

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


class PendingMasks:
    """Masks under way, of the sequences at ``rows`` of a step."""

    def __init__(self, rows: list[int], future: Future[list[bytearray | AegaeonError]]) -> None:
        self._rows = rows
        self._future = future

    def apply(self, logits: torch.Tensor) -> dict[int, AegaeonError]:
        """Exclude tokens from ``logits`` [R, V] in place; the rows that failed, and why."""
        errors: dict[int, AegaeonError] = {}
        rows: list[int] = []
        bits = bytearray()
        for row, mask in zip(self._rows, self._future.result(), strict=True):
            if isinstance(mask, AegaeonError):
                errors[row] = mask
            else:
                rows.append(row)
                bits += mask
        if rows:
            packed = torch.frombuffer(bits, dtype=torch.uint8).view(len(rows), -1)
            exclude(logits, rows, packed)
        return errors


def exclude(logits: torch.Tensor, rows: Seq[int], packed: torch.Tensor) -> None:
    """Set ``logits`` [R, V] to -inf at ``rows`` where the bit of a token in ``packed``, uint8
    [rows, at least V / 8], is 0."""
    device, vocab = logits.device, logits.shape[1]
    shifts = torch.arange(8, dtype=torch.uint8, device=device)
    bits = (upload(packed, device)[:, :, None] >> shifts) & 1
    forbidden = bits.view(len(rows), -1)[:, :vocab] == 0
    index = upload(rows, device)
    logits[index] = logits[index].masked_fill(forbidden, -torch.inf)


def _masks(sequences: Seq[Sequence]) -> list[bytearray | AegaeonError]:
    return [_mask(sequence) for sequence in sequences]


def _mask(sequence: Sequence) -> bytearray | AegaeonError:
    assert sequence.text is not None
    try:
        return sequence.text.result().mask(sequence.stop.stop_ids)
    except AegaeonError as error:
        return error
    except Exception as error:  # of the library: of no other sequence's business
        return EngineError(f"the request's constraint failed: {type(error).__name__}: {error}")
