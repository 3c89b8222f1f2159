"""The native decoder on CUDA."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812

from aegaeon_worker.kernels.activation import silu_mul
from aegaeon_worker.kernels.cut_linear import can_cut, cut_linear
from aegaeon_worker.kernels.decode_attention import (
    DecodeSequences,
    choose_splits,
    decode_attention,
)
from aegaeon_worker.kernels.decode_rows import DecodeInputs, choose_best, decode_inputs
from aegaeon_worker.kernels.dense_attention import (
    DenseRun,
    dense_attention,
    dense_tokens,
    plan_dense,
)
from aegaeon_worker.kernels.narrow_linear import MAX_ROWS, can_gate, narrow_linear, narrow_swiglu
from aegaeon_worker.kernels.norm import add_norm
from aegaeon_worker.kernels.prefill_attention import PrefillTiles, prefill_attention
from aegaeon_worker.kernels.rotary import RotaryTables, rotary_tables, rotate_and_store
from aegaeon_worker.models.interface import DecodeRows, DecodeStep, StepInput
from aegaeon_worker.models.native.backend import LogitsOf
from aegaeon_worker.models.native.plan import AttentionPlan
from aegaeon_worker.parallel.vocabulary import SharedVocabulary


class TritonBackend:
    """See ``Backend``."""

    def __init__(self, plan: AttentionPlan, device: torch.device) -> None:
        self._plan = plan
        self._frequencies = plan.frequencies.to(device)
        self._decoding = False

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """See ``Backend``."""
        if x.shape[0] <= MAX_ROWS:
            return narrow_linear(x, weight, bias)
        # Its launch takes the host longer than the product takes; steps are recorded.
        if self._decoding and can_cut(x, weight):
            return cut_linear(x, weight, bias)
        return F.linear(x, weight, bias)

    def swiglu(self, x: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
        """See ``Backend``."""
        if can_gate(x, gate_up):
            return narrow_swiglu(x, gate_up)
        return silu_mul(F.linear(x, gate_up))

    def add_norm(
        self, delta: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See ``Backend``."""
        return add_norm(delta, residual, weight, eps)

    def logits(self, x: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        """See ``Backend``."""
        if x.shape[0] <= MAX_ROWS:
            return narrow_linear(x, head, None, parts=1)[0]
        if x.dtype == torch.float32:
            return F.linear(x, head)
        return torch.mm(x, head.t(), out_dtype=torch.float32)

    def attention(self, step: StepInput) -> TritonAttention:
        """See ``Backend``."""
        return plan_attention(self._plan, self._frequencies, step)

    def decode_step(self, logits_of: LogitsOf, vocabulary: SharedVocabulary) -> DecodeStep:
        """See ``Backend``."""

        @torch.inference_mode()
        def step(rows: DecodeRows) -> None:
            inputs = decode_inputs(rows.staged, rows.tokens, rows.block_tables)
            self._decoding = True
            try:
                columns = logits_of(inputs.token_ids, self._decode_attention(inputs, rows), None)
            finally:
                self._decoding = False
            if rows.logits is None:
                choose_best(vocabulary.own(columns), rows.tokens, rows.found)
                vocabulary.settle(rows.tokens, rows.found)
            elif (logits := vocabulary.whole(columns)).shape == rows.logits.shape:
                rows.logits.copy_(logits)  # on rank 0, which chooses

        return step

    def _decode_attention(self, inputs: DecodeInputs, rows: DecodeRows) -> TritonAttention:
        kv, block_tables = rows.kv, rows.block_tables
        tables = rotary_tables(
            inputs.positions, None, block_tables, self._frequencies, self._plan.rope_scaling, kv
        )
        decode = DecodeSequences(inputs.context_lens, block_tables, None, None)
        longest = block_tables.shape[1] * kv.shape[3]
        return TritonAttention(self._plan, kv, block_tables, tables, decode, longest, None, ())


class TritonAttention:
    """See ``StepAttention``."""

    def __init__(
        self,
        plan: AttentionPlan,
        kv: torch.Tensor,
        block_tables: torch.Tensor,
        tables: RotaryTables,
        decode: DecodeSequences | None,
        longest: int,
        prefill: PrefillTiles | None,
        dense: Sequence[DenseRun],
    ) -> None:
        self._plan = plan
        self._kv = kv
        self._block_tables = block_tables
        self._tables = tables
        self._decode = decode
        self._prefill = prefill
        self._dense = dense
        self._splits = 1 if decode is None else choose_splits(decode.count, plan.kv_heads, longest)

    def attend(
        self,
        layer: int,
        qkv: torch.Tensor,
        head_norms: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        """See ``StepAttention``."""
        plan = self._plan
        query, key, value = rotate_and_store(
            qkv, self._tables, head_norms, plan.norm_eps, self._kv, layer, dense=bool(self._dense)
        )
        rows = query.shape[0]
        if self._dense and self._dense[0].rows == slice(0, rows):
            return dense_attention(query, key, value, self._dense[0], scale=plan.scale).flatten(1)
        out = torch.empty_like(query)
        window = plan.windows[layer]
        if self._decode is not None:
            decode_attention(
                query, self._decode, self._kv, layer, out,
                scale=plan.scale, window=window, splits=self._splits,
            )  # fmt: skip
        if self._prefill is not None:
            prefill_attention(
                query, self._prefill, self._block_tables, self._kv, layer, out,
                scale=plan.scale, window=window,
            )  # fmt: skip
        for run in self._dense:
            out[run.rows] = dense_attention(query, key, value, run, scale=plan.scale)
        return out.view(rows, -1)


def plan_attention(
    plan: AttentionPlan, frequencies: torch.Tensor, step: StepInput
) -> TritonAttention:
    """Decode attention for the sequences that add one token, prefill attention for the others."""
    device = step.kv.device
    count = len(step.query_lens)
    single = [s for s in range(count) if step.query_lens[s] == 1]
    several = [s for s in range(count) if step.query_lens[s] > 1]
    of_rows = None
    if several:
        counts = torch.tensor(step.query_lens)
        of_rows = torch.repeat_interleave(torch.arange(count), counts).to(device, non_blocking=True)
    tables = rotary_tables(
        step.positions, of_rows, step.block_tables, frequencies, plan.rope_scaling, step.kv
    )
    decode = None
    longest = max((step.context_lens[s] for s in single), default=0)
    if single:
        lengths = _int32(step.context_lens, device)
        first_rows = [0]
        for query_len in step.query_lens:
            first_rows.append(first_rows[-1] + query_len)
        decode = DecodeSequences(
            lengths,
            step.block_tables,
            _int32(single, device) if several else None,
            _int32([first_rows[s] for s in single], device) if several else None,
        )
    covered = dense_tokens(step.query_lens, step.context_lens, plan.windows)
    prefill = None
    if any(covered[s] < step.query_lens[s] for s in several):
        prefill = PrefillTiles.plan(several, step.query_lens, step.context_lens, covered, device)
    dense = plan_dense(step.query_lens, covered)
    return TritonAttention(
        plan, step.kv, step.block_tables, tables, decode, longest, prefill, dense
    )


def _int32(values: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32).to(device, non_blocking=True)
