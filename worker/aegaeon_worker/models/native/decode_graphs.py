"""Decode steps as CUDA graphs: one launch per step, each step feeding the next on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from aegaeon_worker.kernels.greedy import StepState, advance_greedy
from aegaeon_worker.kv.shape import BLOCK_TOKENS
from aegaeon_worker.models.native.model import NativeModel
from aegaeon_worker.models.native.triton_backend import TritonBackend

#: Steps whose tokens may be on their way to the host at once.
HISTORY_STEPS = 8
#: Batch sizes that are captured up to the largest: powers of two, then multiples.
_MULTIPLE = 32


def padded_sizes(max_batch: int) -> tuple[int, ...]:
    """The batch sizes to capture for batches of up to ``max_batch``, ascending."""
    powers = [1 << power for power in range(_MULTIPLE.bit_length() - 1)]
    sizes = [*powers, *range(_MULTIPLE, max_batch + _MULTIPLE, _MULTIPLE)]
    return tuple(sorted({min(size, max_batch) for size in sizes}))


@dataclass(frozen=True)
class DecodeBatch:
    """Sequences that decode together, as they are before the first step."""

    token_ids: Sequence[int]
    """The newest token of each, whose keys and values are not stored yet."""
    context_lens: Sequence[int]
    """Tokens of each, the newest included."""
    block_tables: Sequence[Sequence[int]]
    """Mapped blocks of each, enough for every step until the next ``start``."""


class StepTokens:
    """Tokens of one step on their way to the host."""

    def __init__(self, copied: torch.cuda.Event, tokens: torch.Tensor) -> None:
        self._copied = copied
        self._tokens = tokens

    def wait(self) -> list[int]:
        """One token per sequence of the batch; call it within ``HISTORY_STEPS`` steps."""
        self._copied.synchronize()
        tokens: list[int] = self._tokens.tolist()
        return tokens


class DecodeGraphs:
    """The decode steps of one model at fixed addresses.

    Weights and KV may be unmapped and mapped again between steps: graphs hold addresses only. Rows
    that pad a batch read and write no KV.
    """

    def __init__(
        self, model: NativeModel, kv: torch.Tensor, *, max_batch: int, max_tokens: int
    ) -> None:
        """``kv`` is the model's KV range; sequences are shorter than ``max_tokens``."""
        device = kv.device
        assert isinstance(model.backend, TritonBackend)
        self._backend = model.backend
        self._model = model
        self._kv = kv
        self._sizes = padded_sizes(max_batch)
        width = -(-max_tokens // BLOCK_TOKENS)
        self._tables = torch.zeros(max_batch, width, dtype=torch.int64, device=device)
        self._state = StepState(
            token_ids=torch.zeros(max_batch, dtype=torch.int64, device=device),
            positions=torch.full((max_batch,), -1, dtype=torch.int64, device=device),
            context_lens=torch.zeros(max_batch, dtype=torch.int32, device=device),
            history=torch.zeros(HISTORY_STEPS, max_batch, dtype=torch.int64, device=device),
            step=torch.zeros(1, dtype=torch.int64, device=device),
        )
        self._host = torch.zeros(HISTORY_STEPS, max_batch, dtype=torch.int64, pin_memory=True)
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copied = [torch.cuda.Event() for _ in range(HISTORY_STEPS)]  # type: ignore[no-untyped-call]
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._steps = 0
        self._count = 0
        self._size = 0

    def capture(self) -> None:
        """Capture every batch size; the weights must be mapped, the KV need not be.

        Nothing of it touches the KV. Must not run while a batch is under way.
        """
        self._clear()
        pool = torch.cuda.graph_pool_handle()
        # The largest first: the smaller ones fit into its memory.
        for size in reversed(self._sizes):
            step = self._step_of(size)
            # Kernels are compiled, and libraries set up, outside the capture.
            step()
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize(self._kv.device)
            with torch.cuda.graph(graph, pool=pool):
                step()
            self._graphs[size] = graph
        self._steps = int(self._state.step.item())

    def start(self, batch: DecodeBatch) -> None:
        """Take up ``batch`` in place of the one before, behind all steps already issued."""
        count, device = len(batch.token_ids), self._kv.device
        self._size = next(size for size in self._sizes if size >= count)
        self._count = count
        self._clear()
        state = self._state
        lens = torch.tensor(batch.context_lens)
        state.token_ids[:count] = torch.tensor(batch.token_ids).to(device, non_blocking=True)
        state.positions[:count] = (lens - 1).to(device, non_blocking=True)
        state.context_lens[:count] = lens.to(device, torch.int32, non_blocking=True)
        width = max(len(table) for table in batch.block_tables)
        padded = [[*table, *[0] * (width - len(table))] for table in batch.block_tables]
        self._tables[:count, :width] = torch.tensor(padded).to(device, non_blocking=True)

    def step(self) -> StepTokens:
        """Issue the next step of the batch and return without waiting for it."""
        entry = self._steps % HISTORY_STEPS
        compute = torch.cuda.current_stream(self._kv.device)
        # The step overwrites the tokens of ``HISTORY_STEPS`` ago: they must have left.
        compute.wait_event(self._copied[entry])
        self._graphs[self._size].replay()
        self._steps += 1
        self._copies.wait_stream(compute)
        with torch.cuda.stream(self._copies):
            self._host[entry].copy_(self._state.history[entry], non_blocking=True)
            self._copied[entry].record()
        return StepTokens(self._copied[entry], self._host[entry, : self._count])

    def _clear(self) -> None:
        """Make every row padding."""
        self._state.positions.fill_(-1)
        self._state.context_lens.zero_()

    def _step_of(self, size: int) -> Callable[[], None]:
        """The work of one step of ``size`` rows."""
        state = self._state
        tables = self._tables[:size]
        rows = StepState(
            state.token_ids[:size],
            state.positions[:size],
            state.context_lens[:size],
            state.history,
            state.step,
        )

        @torch.inference_mode()
        def step() -> None:
            attention = self._backend.decode_attention(
                rows.positions, rows.context_lens, tables, self._kv
            )
            logits = self._model.logits(rows.token_ids, attention, None)
            advance_greedy(logits, rows)

        return step
