"""Ways to run steps on a CPU: as the CPU does, and as a GPU does."""

from __future__ import annotations

from collections.abc import Callable

import torch

from aegaeon_worker.device.interface import Device
from aegaeon_worker.engine.execution import Execution, HostWatch
from aegaeon_worker.engine.prefill_pace import StepLimits
from aegaeon_worker.kv.shape import BLOCK_TOKENS
from aegaeon_worker.models.interface import DecodeRows, DecodeStep, ServedModel, StepInput
from aegaeon_worker.sampling.draw import best


class PlainRecorder:
    """A ``GraphRecorder`` that replays by doing the same again."""

    def __init__(self) -> None:
        self._scratch: dict[str, torch.Tensor] = {}

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._scratch.values())

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        return work

    def scratch(self, purpose: str, dtype: torch.dtype, shape: tuple[int, int]) -> torch.Tensor:
        count = shape[0] * shape[1]
        found = self._scratch.get(purpose)
        if found is None or found.numel() < count:
            # What is left of others must not matter.
            found = self._scratch[purpose] = torch.full((count,), 10**6, dtype=dtype)
        return found[:count].view(shape)


def one_ahead(device: Device) -> Execution:
    """As on a GPU."""
    return Execution(1, StepLimits(), HostWatch, PlainRecorder())


def plain_decode_step(model: ServedModel) -> DecodeStep:
    """A decode step over ``model.forward`` that takes nothing but what is staged."""

    @torch.inference_mode()
    def step(rows: DecodeRows) -> None:
        known, sources, positions, blocks = rows.staged
        live = positions >= 0
        count = int(live.sum())
        at = positions[live, None] // BLOCK_TOKENS
        rows.block_tables[live] = rows.block_tables[live].scatter(1, at, blocks[live, None])
        before = rows.tokens[sources.clamp(min=0)]
        logits = model.forward(
            StepInput(
                token_ids=torch.where(sources >= 0, before, known)[live],
                positions=positions[live],
                query_lens=(1,) * count,
                context_lens=tuple((positions[live] + 1).tolist()),
                block_tables=rows.block_tables[live],
                kv=rows.kv,
                logit_rows=torch.arange(count),
            )
        )
        if rows.logits is not None:
            rows.logits.fill_(torch.nan)[live] = logits
            return
        tokens, highest = best(logits)
        rows.tokens[: len(live)] = -1
        rows.tokens[: len(live)][live] = tokens
        rows.found.fill_(torch.nan)[live] = torch.stack((tokens.double(), highest.double()), 1)

    return step
