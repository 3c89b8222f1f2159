"""Sampling of decode steps whose parameters stay on the device: recorded once, then replayed."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import partial
from typing import NamedTuple

import torch

from aegaeon_worker.device.host_link import upload, write
from aegaeon_worker.engine.execution import GraphRecorder
from aegaeon_worker.engine.recordings import Recordings
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.sampling.adjustments import penalize_counted, penalty_factors
from aegaeon_worker.sampling.draw import best
from aegaeon_worker.sampling.draws import Draws, drawn_tokens
from aegaeon_worker.sampling.filters import FilterKind, Filters, floors, limit
from aegaeon_worker.sampling.parameters import SamplingParameters
from aegaeon_worker.sampling.token_counts import TokenCounts

_GREEDY = SamplingParameters()


class SamplingKind(NamedTuple):
    """What sampling a batch needs, so that steps with the same need are the same work."""

    draws: bool
    """Some tokens are drawn."""
    filters: FilterKind
    penalizes: bool
    """Some have penalties."""


class StepBuffers(NamedTuple):
    """What a decode step leaves to sampling, and where that writes; at addresses that never change.

    See ``DecodeRows``, of whose rows there are S.
    """

    staged: torch.Tensor
    """int64 [4, S]"""
    tokens: torch.Tensor
    """int64 [B]: still of the step before."""
    found: torch.Tensor
    """float64 [S, 2]"""
    logits: torch.Tensor
    """float32 [S, V], consumed."""


class RecordedSampling:
    """Chooses the tokens of decode steps in one replay after that of the model.

    Parameters are uploaded when the batch becomes another one. Tokens that penalties count are
    counted on the device as they are chosen, so that such steps are issued ahead as well.
    """

    def __init__(
        self, recorder: GraphRecorder, device: torch.device, *, max_batch: int, vocab_size: int
    ) -> None:
        self._recorder = recorder
        self._recordings: Recordings[tuple[int, SamplingKind]] = Recordings(recorder)
        self._max_batch = max_batch
        self._vocab_size = vocab_size
        #: Temperature, floor, and penalties as of `penalty_factors`.
        self._scales = torch.ones(5, max_batch, dtype=torch.float32, device=device)
        self._top_p = torch.ones(max_batch, dtype=torch.float64, device=device)
        #: Top-k, seed, and whether the token is drawn.
        self._integers = torch.zeros(3, max_batch, dtype=torch.int64, device=device)
        self._members: list[Sequence] = []
        self._kind: SamplingKind | None = None
        #: Per row, whose tokens are counted there and how many of them.
        self._counted: list[tuple[Sequence, int] | None] = [None] * max_batch

    @property
    def recorded(self) -> frozenset[tuple[int, SamplingKind]]:
        """What is replayed: sizes of steps, each with a kind of sampling."""
        return self._recordings.kinds

    def begin_turn(self) -> None:
        """Another model may have counted its tokens where this one does."""
        self._counted = [None] * self._max_batch

    def prepare(self, sequences: Seq[Sequence]) -> bool:
        """Make the device ready for a batch; False if its sampling is none that is recorded."""
        if any(not sequence.may_stop and sequence.stop.stop_ids for sequence in sequences):
            return False
        if self._members != list(sequences):
            self._members = list(sequences)
            parameters = [sequence.sampling or _GREEDY for sequence in sequences]
            self._kind = _kind_of(parameters, self._vocab_size)
            if self._kind is not None:
                self._upload(parameters)
        if self._kind is not None and self._kind.penalizes:
            self._count(sequences)
        return self._kind is not None

    def choose(self, buffers: StepBuffers) -> None:
        """Write the tokens of the batch that was prepared."""
        kind = self._kind
        assert kind is not None
        key = len(buffers.logits), kind
        self._recordings.run(key, partial(self._choose, buffers, kind))
        if kind.penalizes:
            for row, sequence in enumerate(self._members):
                self._counted[row] = (sequence, sequence.num_tokens)

    @torch.inference_mode()
    def _choose(self, buffers: StepBuffers, kind: SamplingKind) -> None:
        logits, tokens = buffers.logits, buffers.tokens
        size = len(logits)
        _, sources, positions, _ = buffers.staged
        if kind.penalizes:
            # The newest token of a row, unless it is counted already because the host knows it.
            newest = torch.where(sources >= 0, tokens[sources.clamp(min=0)], -1)
            penalize_counted(logits, self._counts(), newest, self._scales[2:])
        chosen, highest = best(logits)
        if kind.draws:
            temperature, floor = self._scales[:2, :size]
            top_k, seeds, drawn = self._integers[:, :size]
            filters = Filters(kind.filters, floor, top_k, self._top_p[:size], None)
            # Chosen tokens stand behind the newest ones.
            draws = Draws(temperature, filters, seeds, positions + 1)
            chosen = torch.where(drawn > 0, drawn_tokens(logits, highest, draws), chosen)
        tokens[:size].copy_(chosen)
        buffers.found[:, 0].copy_(chosen)
        buffers.found[:, 1].copy_(highest)

    def _upload(self, parameters: Seq[SamplingParameters]) -> None:
        rows = [*parameters, *[_GREEDY] * (self._max_batch - len(parameters))]
        # Filters of rows that are not drawn must not reach beyond what is looked at.
        drawn = [_GREEDY if p.is_greedy else p for p in rows]
        temperature = torch.tensor([1.0 if p.is_greedy else p.temperature for p in rows])
        scales = temperature[None], floors(drawn)[None], penalty_factors(rows)
        write(self._scales, torch.cat(scales))
        write(self._top_p, torch.tensor([p.top_p for p in drawn], dtype=torch.float64))
        top_k = [limit(p, self._vocab_size) for p in drawn]
        seeds = [p.seed for p in drawn]
        write(self._integers, torch.tensor([top_k, seeds, [int(not p.is_greedy) for p in rows]]))

    def _count(self, sequences: Seq[Sequence]) -> None:
        """Have all known tokens counted; one under way is counted by the step itself."""
        changed: list[tuple[int, TokenCounts]] = []
        for row, sequence in enumerate(sequences):
            counted, self._counted[row] = self._counted[row], None  # until the step is issued
            penalizes = sequence.sampling is not None and sequence.sampling.penalizes
            if penalizes and counted != (sequence, len(sequence.tokens)):
                changed.append((row, sequence.token_counts()))
        if not changed:
            return
        counts = self._counts()
        rows = torch.tensor([row for row, _ in changed])
        counts.index_fill_(0, upload(rows, counts.device), 0)
        if changed := [(row, known) for row, known in changed if len(known)]:
            tables = [known.tensors() for _, known in changed]
            lengths = torch.tensor([len(ids) for ids, _ in tables])
            rows = torch.tensor([row for row, _ in changed]).repeat_interleave(lengths)
            ids = torch.cat([ids for ids, _ in tables])
            values = torch.cat([generated for _, generated in tables]) * 2 + 1
            at, ids, values = upload(torch.stack((rows, ids, values)), counts.device)
            counts[at, ids] = values.to(torch.int32)

    def _counts(self) -> torch.Tensor:
        shape = (self._max_batch, self._vocab_size)
        return self._recorder.scratch("token counts", torch.int32, shape)


def _kind_of(parameters: Seq[SamplingParameters], vocab: int) -> SamplingKind | None:
    """None where more is asked than is recorded: log-probabilities, biases, constraints."""
    if any(p.logprobs is not None or p.logit_bias or p.constraint is not None for p in parameters):
        return None
    drawn = [p for p in parameters if not p.is_greedy]
    penalizes = any(p.penalizes for p in parameters)
    return SamplingKind(bool(drawn), FilterKind.of(drawn, vocab), penalizes)
