"""What the engine asks of a model, however it is implemented."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from aegaeon_worker.kv.shape import KvShape
from aegaeon_worker.weights.layout import WeightLayout
from aegaeon_worker.weights.stage_gate import StageGate


@dataclass(frozen=True)
class StepInput:
    """One forward pass over several sequences, packed without padding.

    Row order is sequence order. Sequence ``s`` contributes ``query_lens[s]`` new tokens; after the
    pass its KV holds ``context_lens[s]`` tokens (the new ones included).
    """

    token_ids: torch.Tensor
    """int64 [T]: the new tokens of all sequences, one after another."""
    positions: torch.Tensor
    """int64 [T]: position of each token in its sequence."""
    query_lens: tuple[int, ...]
    """New tokens per sequence; all 1 in a pure decode step."""
    context_lens: tuple[int, ...]
    """Tokens in each sequence's KV after this pass."""
    block_tables: torch.Tensor
    """int64 [S, B]: block ids into ``kv``, padded with 0 past each sequence's own blocks."""
    kv: torch.Tensor
    """[num_blocks, num_layers, 2, BLOCK_TOKENS, num_kv_heads, head_dim]: the model's KV range.

    Only blocks named in ``block_tables`` are mapped; touching any other one faults.
    """
    logit_rows: torch.Tensor
    """int64 [R]: the rows of ``[0, T)`` whose logits are wanted."""


@dataclass(frozen=True)
class DecodeRows:
    """One new token for each of S sequences, at addresses that never change.

    Nothing here is read on the host, so that the work on it can be recorded and replayed.
    """

    staged: torch.Tensor
    """int64 [4, S]. Per row: its newest token; instead of it, the row of ``tokens`` that holds it,
    or -1; its position, or -1 for padding, whose KV is neither read nor written; and the block that
    it goes to, which the step enters into ``block_tables``."""
    tokens: torch.Tensor
    """int64 [B], B >= S: first those of the step before, in the end the new ones."""
    found: torch.Tensor
    """float64 [S, 2], written: each new token and its logit."""
    block_tables: torch.Tensor
    """int64 [S, B]: as in ``StepInput``; whatever lies past a sequence's own blocks is not read."""
    kv: torch.Tensor
    """As in ``StepInput``."""
    logits: torch.Tensor | None
    """float32 [S, vocab]: where given, it is written, and ``tokens`` and ``found`` are not."""


DecodeStep = Callable[[DecodeRows], None]
"""Without logits it chooses the most probable tokens, the lowest id among equals. A logit that is
no number counts as infinite."""


class ServedModel(Protocol):
    """A model without storage of its own: weights are bound to views of its device range."""

    layout: WeightLayout
    kv_shape: KvShape
    vocab_size: int
    max_model_len: int

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Point every parameter at ``tensors`` (name → view). Called once; addresses never move."""

    def use_gate(self, gate: StageGate) -> None:
        """Called once, after ``bind``: weights may still be arriving when a pass begins.

        From then on every pass calls ``gate.wait`` with the name of a layout's stage before it
        touches the stage's weights, stage by stage.
        """

    @property
    def decode_step(self) -> DecodeStep | None:
        """A decode step that can be recorded once the weights are there; None if it has none.

        Known from ``bind`` on.
        """

    def forward(self, step: StepInput) -> torch.Tensor:
        """Run one pass; write new K and V into ``step.kv``; return float32 logits [R, vocab]."""


@dataclass(frozen=True)
class CheckpointReader:
    """How to fill the layouts of an engine's ranks from files."""

    fingerprint: str
    """Identity of the weights: changes when any file or the dtype changes, and is the same for any
    number of ranks."""
    packed_fingerprint: Callable[[int], str]
    """Identity of one rank's packed bytes."""
    fill_all: Callable[[Mapping[int, Mapping[str, torch.Tensor]]], None]
    """Write every tensor of the layout into the views of each rank that is given, reading each
    tensor of the files once."""


class ModelLoader(Protocol):
    """Opens a checkpoint folder: cheap, reads headers and configs only."""

    def open(
        self, path: Path, *, dtype: torch.dtype, max_model_len: int | None, trust_remote_code: bool
    ) -> tuple[ServedModel, CheckpointReader]:
        """Raise ``ModelLoadError`` naming file and reason when it cannot be served."""
