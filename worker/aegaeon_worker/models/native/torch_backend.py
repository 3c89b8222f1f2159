"""The native decoder in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

from aegaeon_worker.models.interface import StepInput
from aegaeon_worker.models.linear import product
from aegaeon_worker.models.native.backend import LogitsOf
from aegaeon_worker.models.native.plan import AttentionPlan
from aegaeon_worker.models.paged.step import PagedPass
from aegaeon_worker.parallel.vocabulary import SharedVocabulary


class TorchBackend:
    """See ``Backend``."""

    def __init__(self, plan: AttentionPlan, device: torch.device, dtype: torch.dtype) -> None:
        self._plan = plan
        self._frequencies = plan.frequencies.to(device)
        fast = device.type == "cpu" and dtype == torch.float32
        self._product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = (
            product if fast else F.linear
        )

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """See ``Backend``."""
        # Contiguous, or every later operation of the layer would stride.
        out = self._product(x, weight).contiguous()
        return out if bias is None else out.add_(bias)

    def swiglu(self, x: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
        """See ``Backend``."""
        gate, up = self._product(x, gate_up).chunk(2, -1)
        return F.silu(gate).mul_(up)

    def add_norm(
        self, delta: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See ``Backend``."""
        if delta is not None:
            residual += delta
        return F.rms_norm(residual, (residual.shape[-1],), weight, eps)

    def logits(self, x: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        """See ``Backend``."""
        return self._product(x, head).contiguous().float()

    def attention(self, step: StepInput) -> TorchAttention:
        """See ``Backend``."""
        return TorchAttention(self._plan, self._frequencies, step)

    def decode_step(self, logits_of: LogitsOf, vocabulary: SharedVocabulary) -> None:
        """See ``Backend``."""


class TorchAttention:
    """See ``StepAttention``."""

    def __init__(self, plan: AttentionPlan, frequencies: torch.Tensor, step: StepInput) -> None:
        self._plan = plan
        self._pass = PagedPass(step, plan.windows, masked=False)
        angles = step.positions[:, None].float() * frequencies
        cos, sin = angles.cos() * plan.rope_scaling, angles.sin() * plan.rope_scaling
        self._cos = torch.cat([cos, cos], -1).to(step.kv.dtype)[:, None]
        self._sin = torch.cat([-sin, sin], -1).to(step.kv.dtype)[:, None]

    def attend(
        self,
        layer: int,
        qkv: torch.Tensor,
        head_norms: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        """See ``StepAttention``."""
        plan = self._plan
        rows = qkv.view(qkv.shape[0], -1, plan.head_dim)
        turned = rows[:, : plan.query_heads + plan.kv_heads]
        value = rows[:, plan.query_heads + plan.kv_heads :]
        if head_norms is not None:
            parts = torch.split(turned, [plan.query_heads, plan.kv_heads], 1)
            turned = torch.cat(
                [
                    F.rms_norm(part, (plan.head_dim,), weight, plan.norm_eps)
                    for part, weight in zip(parts, head_norms, strict=True)
                ],
                1,
            )
        halves = turned.roll(plan.head_dim // 2, -1)
        turned = (turned * self._cos).addcmul_(halves, self._sin)
        query, key = torch.split(turned, [plan.query_heads, plan.kv_heads], 1)
        out = self._pass.attend_layer(
            layer,
            query.transpose(0, 1)[None],
            key.transpose(0, 1)[None],
            value.transpose(0, 1)[None],
            scaling=plan.scale,
            softcap=None,
            sinks=None,
        )
        return out.reshape(qkv.shape[0], -1)
