"""What the native decoder computes with: one implementation for CUDA, one for everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from aegaeon_worker.models.interface import DecodeStep, StepInput
from aegaeon_worker.models.native.plan import AttentionPlan
from aegaeon_worker.parallel.vocabulary import SharedVocabulary


class StepAttention(Protocol):
    """The attention of one pass."""

    def attend(
        self,
        layer: int,
        qkv: torch.Tensor,
        head_norms: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        """Norm and rotate, store keys and values, attend: [T, Hq * D].

        ``qkv`` is what ``Backend.linear`` gave for queries, keys and values, in this order.
        """


LogitsOf = Callable[[torch.Tensor, StepAttention, torch.Tensor | None], torch.Tensor]
"""Runs token ids [T] through all layers: float32 logits of rows [R], or of all."""


class Backend(Protocol):
    """The operations of a decoder layer.

    A result of ``linear`` is [T, N] or partial sums [P, T, N]: it is for ``add_norm`` and
    ``StepAttention.attend`` only.
    """

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """``x`` [T, K] by ``weight`` [N, K], plus ``bias`` [N]."""

    def swiglu(self, x: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
        """``silu(x @ gate.T) * (x @ up.T)`` [T, I] for ``gate_up`` [2 I, K]."""

    def add_norm(
        self, delta: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Add ``delta`` to ``residual`` [T, H] in place; return its RMS norm."""

    def logits(self, x: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        """``x`` [R, H] by ``head`` [V, H], in float32."""

    def attention(self, step: StepInput) -> StepAttention:
        """The attention of one pass."""

    def decode_step(self, logits_of: LogitsOf, vocabulary: SharedVocabulary) -> DecodeStep | None:
        """A decode step with these layers, whose logits are those of this rank's share of the
        ``vocabulary``; None if it would be planned on the host."""


def choose_backend(device: torch.device, plan: AttentionPlan, dtype: torch.dtype) -> Backend:
    """The kernels on CUDA, PyTorch elsewhere; without storage the kernels, to compile them."""
    if device.type in ("cuda", "meta"):
        # Triton is installed with PyTorch for CUDA only.
        from aegaeon_worker.models.native.triton_backend import TritonBackend

        return TritonBackend(plan, device)
    from aegaeon_worker.models.native.torch_backend import TorchBackend

    return TorchBackend(plan, device, dtype)
