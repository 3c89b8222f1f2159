"""Decode steps of one model at padded batch sizes: recorded once, then replayed."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from typing import NamedTuple

import torch

from aegaeon_worker.device.host_link import upload, write
from aegaeon_worker.engine.execution import GraphRecorder
from aegaeon_worker.engine.recorded_sampling import RecordedSampling, StepBuffers
from aegaeon_worker.engine.recordings import Recordings
from aegaeon_worker.engine.sampler import PendingChoices, choose_tokens, takes_best
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.engine.step_plan import StepTokens
from aegaeon_worker.grammar.masks import PendingMasks
from aegaeon_worker.kv.shape import BLOCK_TOKENS, KvShape
from aegaeon_worker.models.interface import DecodeRows, DecodeStep

#: Batch sizes up to the largest: powers of two, then multiples.
_MULTIPLE = 32


def padded_sizes(max_batch: int) -> tuple[int, ...]:
    """The sizes of steps for batches of up to ``max_batch``, ascending."""
    powers = [1 << power for power in range(_MULTIPLE.bit_length() - 1)]
    sizes = [*powers, *range(_MULTIPLE, max_batch + _MULTIPLE, _MULTIPLE)]
    return tuple(sorted({min(size, max_batch) for size in sizes}))


class StepOrder(NamedTuple):
    """What the device is told for one step."""

    size: int
    """Rows, padding included."""
    staged: list[int]
    """As in ``DecodeRows``, flat."""
    changed: list[int]
    """Rows whose block tables differ from those of the step before, by more than what is staged."""
    tables: list[list[int]]
    """Theirs, padded to one width."""
    best: bool
    """The most probable tokens are chosen in the step."""
    replays: bool
    """See ``DecodeSteps.issue``."""


class DecodeSteps:
    """Steps in which every sequence adds one token, issued without waiting for the step before.

    Steps are recorded, one per padded size. Weights and KV may be unmapped and mapped again between
    steps: what is recorded are addresses, and those never change.
    """

    def __init__(
        self,
        step: DecodeStep,
        kv: torch.Tensor,
        recorder: GraphRecorder,
        *,
        max_batch: int,
        max_tokens: int,
        vocab_size: int,
    ) -> None:
        """``kv`` is the model's KV range; sequences have at most ``max_tokens`` tokens."""
        device = kv.device
        self._step = step
        self._kv = kv
        self._recorder = recorder
        self._sizes = padded_sizes(max_batch)
        self._vocab_size = vocab_size
        self._staged = torch.zeros(4 * max_batch, dtype=torch.int64, device=device)
        self._tokens = torch.zeros(max_batch, dtype=torch.int64, device=device)
        self._found = torch.zeros(max_batch, 2, dtype=torch.float64, device=device)
        width = KvShape.blocks_for(max_tokens)
        # Models take turns, and each writes its own before it reads them.
        shape = (max_batch, width)
        self._tables = recorder.scratch("block tables", torch.int64, shape)
        self._known: list[list[int]] = []
        self._recordings: Recordings[tuple[int, bool]] = Recordings(recorder)
        self.sampling = RecordedSampling(
            recorder, device, max_batch=max_batch, vocab_size=vocab_size
        )
        """Of steps in which not just the best tokens are chosen."""

    @property
    def recorded(self) -> frozenset[tuple[int, bool]]:
        """What is replayed: the sizes, each with whether the best tokens are chosen in it."""
        return self._recordings.kinds

    def recording(self, size: int, *, best: bool) -> Callable[[], None]:
        """What is replayed for one of ``recorded``."""
        return self._recordings.of((size, best))

    def begin_turn(self) -> None:
        """Another model may have had a turn since the last step."""
        self._known = [[] for _ in range(self._sizes[-1])]
        self.sampling.begin_turn()

    def issue(
        self,
        sequences: Seq[Sequence],
        block_tables: Seq[list[int]],
        before: StepTokens | None,
        masks: PendingMasks | None = None,
        *,
        replays: bool,
    ) -> PendingChoices:
        """Issue one step of ``sequences``, all of which are decoding.

        ``before`` has the tokens under way; it may be None when there are none. Unless it
        ``replays``, the step goes layer by layer, as it must while weights arrive; what it computes
        is the same to the last bit.
        """
        count = len(sequences)
        size = next(size for size in self._sizes if size >= count)
        if before is not None and before.tokens.data_ptr() != self._tokens.data_ptr():
            self._put(before.tokens)
        best = takes_best(sequences)
        staged = self._stage(sequences, block_tables, size, before)
        self.apply(StepOrder(size, staged, *self._changes(sequences, block_tables), best, replays))
        tokens = self._tokens[:count]
        if best:
            return PendingChoices(tokens, self._found[:count])
        logits = self._logits(size)
        if self.sampling.prepare(sequences):
            rows = self._rows(size, best=False)
            self.sampling.choose(StepBuffers(rows.staged, rows.tokens, rows.found, logits))
            self._chosen_here()
            return PendingChoices(tokens, self._found[:count])
        choices = choose_tokens(logits[:count], sequences, masks, before)
        self._put(choices.tokens)
        choices.tokens = tokens
        return choices

    def apply(self, order: StepOrder) -> None:
        """Tell the device, and run the step."""
        write(self._staged[: 4 * order.size], torch.tensor(order.staged))
        if order.changed:
            at = upload(order.changed, self._kv.device)
            tables = upload(order.tables, self._kv.device)
            self._tables[:, : tables.shape[1]][at] = tables
        self._run(order.size, best=order.best, replays=order.replays)

    def _put(self, tokens: torch.Tensor) -> None:
        """Make ``tokens`` [S], chosen outside a step, those that the next one goes on from."""
        self._tokens[: len(tokens)].copy_(tokens)
        self._chosen_here()

    def _chosen_here(self) -> None:
        """The newest tokens were not chosen in the step itself."""

    def _stage(
        self,
        sequences: Seq[Sequence],
        block_tables: Seq[list[int]],
        size: int,
        before: StepTokens | None,
    ) -> list[int]:
        """Where each row's token comes from, its position, and the block of that."""
        known, sources = [0] * size, [-1] * size
        for row, sequence in enumerate(sequences):
            if sequence.num_under_way:
                assert before is not None
                sources[row] = before.rows[sequence]
            else:
                known[row] = sequence.tokens[-1]
        positions = [sequence.num_computed for sequence in sequences]
        blocks = [
            table[position // BLOCK_TOKENS]
            for table, position in zip(block_tables, positions, strict=True)
        ]
        padding = [-1] * (size - len(sequences))
        return [*known, *sources, *positions, *padding, *blocks, *padding]

    def _changes(
        self, sequences: Seq[Sequence], block_tables: Seq[list[int]]
    ) -> tuple[list[int], list[list[int]]]:
        rows = []
        for row, table in enumerate(block_tables):
            known = self._known[row]
            if table != known:
                # One new block is staged, if it is that of the position that is computed.
                last = sequences[row].num_computed // BLOCK_TOKENS
                if len(table) - 1 != last or table[:-1] != known:
                    rows.append(row)
                self._known[row] = table
        width = max((len(block_tables[row]) for row in rows), default=0)
        return rows, [block_tables[row] + [0] * (width - len(block_tables[row])) for row in rows]

    def _run(self, size: int, *, best: bool, replays: bool) -> None:
        step = partial(self._step, self._rows(size, best=best))
        self._recordings.run((size, best), step, replays=replays)

    def _rows(self, size: int, *, best: bool) -> DecodeRows:
        return DecodeRows(
            staged=self._staged[: 4 * size].view(4, size),
            tokens=self._tokens,
            found=self._found[:size],
            block_tables=self._tables[:size],
            kv=self._kv,
            logits=None if best else self._logits(size),
        )

    def _logits(self, size: int) -> torch.Tensor:
        shape = (self._sizes[-1], self._vocab_size)
        return self._recorder.scratch("logits", torch.float32, shape)[:size]
