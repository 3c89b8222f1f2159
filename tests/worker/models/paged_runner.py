"""Drives a served model directly: owns its weights, its KV range and the block tables."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import torch

from aegaeon_worker.kv.shape import KvShape
from aegaeon_worker.models.interface import CheckpointReader, ServedModel, StepInput
from aegaeon_worker.models.loader import TransformersLoader
from aegaeon_worker.parallel.collectives import Collectives
from aegaeon_worker.weights.layout import WeightLayout


def allocate(layout: WeightLayout) -> dict[str, torch.Tensor]:
    """Views of one range, as the device gives them; bytes are NaN until filled."""
    storage = torch.full((max(layout.nbytes, 1),), 0xFF, dtype=torch.uint8)
    return {
        slot.spec.name: storage[slot.offset : slot.offset + slot.spec.nbytes]
        .view(slot.spec.dtype)
        .view(slot.spec.shape)
        for slot in layout.slots()
    }


class PagedRunner:
    """A bound model with a KV range full of NaN and randomly placed blocks."""

    def __init__(
        self,
        path: Path,
        *,
        num_blocks: int = 256,
        seed: int = 0,
        packed_for: str = "cpu",
        collectives: Collectives | None = None,
    ) -> None:
        model, reader = TransformersLoader(torch.device(packed_for), collectives).open(
            path, dtype=torch.float32, max_model_len=None, trust_remote_code=False
        )
        rank = 0 if collectives is None else collectives.ranks.rank
        self._setup(model, reader, allocate(model.layout), num_blocks, seed, rank)

    @classmethod
    def over(
        cls, model: ServedModel, reader: CheckpointReader, tensors: Mapping[str, torch.Tensor]
    ) -> Self:
        """Fill and bind the given views."""
        runner = cls.__new__(cls)
        runner._setup(model, reader, tensors, num_blocks=64, seed=0)
        return runner

    def _setup(
        self,
        model: ServedModel,
        reader: CheckpointReader,
        tensors: Mapping[str, torch.Tensor],
        num_blocks: int,
        seed: int,
        rank: int = 0,
    ) -> None:
        reader.fill_all({rank: tensors})
        model.bind(tensors)
        self.model = model
        shape = model.kv_shape
        self.kv = torch.full((num_blocks, *shape.block_shape), float("nan"), dtype=shape.dtype)
        self._free = list(range(1, num_blocks))
        random.Random(seed).shuffle(self._free)
        self._tables: dict[int, list[int]] = {}
        self._lens: dict[int, int] = {}

    def step(
        self,
        work: Mapping[int, Sequence[int]],
        *,
        last_only: bool = True,
        rows: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Feed ``work`` (sequence → new tokens) in one pass; logits of last (or all) rows.

        ``rows`` asks for others.
        """
        tokens: list[int] = []
        positions: list[int] = []
        last: list[int] = []
        for sequence, new in work.items():
            done = self._lens.get(sequence, 0)
            table = self._tables.setdefault(sequence, [])
            while len(table) < KvShape.blocks_for(done + len(new)):
                table.append(self._free.pop())
            tokens.extend(new)
            positions.extend(range(done, done + len(new)))
            last.append(len(tokens) - 1)
            self._lens[sequence] = done + len(new)
        tables = [self._tables[sequence] for sequence in work]
        width = max(len(table) for table in tables)
        if rows is None:
            rows = last if last_only else range(len(tokens))
        return self.model.forward(
            StepInput(
                token_ids=torch.tensor(tokens),
                positions=torch.tensor(positions),
                query_lens=tuple(len(new) for new in work.values()),
                context_lens=tuple(self._lens[sequence] for sequence in work),
                block_tables=torch.tensor([t + [0] * (width - len(t)) for t in tables]),
                kv=self.kv,
                logit_rows=torch.tensor(list(rows), dtype=torch.int64),
            )
        )

    def generate(
        self, prompts: Mapping[int, Sequence[int]], new_tokens: int, *, chunk: int | None = None
    ) -> dict[int, list[int]]:
        """Greedy tokens of all ``prompts`` together; ``chunk`` splits prompts into such pieces."""
        pending = {sequence: list(prompt) for sequence, prompt in prompts.items()}
        out: dict[int, list[int]] = {sequence: [] for sequence in prompts}
        while any(len(tokens) < new_tokens for tokens in out.values()):
            work = {}
            for sequence, todo in pending.items():
                if len(out[sequence]) < new_tokens:
                    work[sequence] = todo[: chunk or len(todo)]
                    pending[sequence] = todo[len(work[sequence]) :]
            logits = self.step(work)
            for sequence, row in zip(work, logits, strict=True):
                if not pending[sequence]:
                    token = int(row.argmax())
                    out[sequence].append(token)
                    pending[sequence] = [token]
        return out
