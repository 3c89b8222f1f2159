"""Linear layers for few rows on a CPU, where ``F.linear`` leaves half the memory speed unused."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

#: Up to this many rows (from two on), the transposed product runs at memory speed.
_TRANSPOSED_MAX_ROWS = 4
#: oneDNN pays below this many rows: above, it is no faster, and each new number of rows costs the
#: making of a kernel.
_ONEDNN_MAX_ROWS = 64
#: oneDNN pays from this many weight rows on.
_ONEDNN_MIN_OUT_FEATURES = 512


def _onednn_available() -> bool:
    """Whether the private oneDNN product exists and takes a plain weight."""
    try:
        _onednn(torch.ones(1, 2), torch.ones(2, 2), None)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return True


def _onednn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


_HAS_ONEDNN = _onednn_available()


class CpuLinear(nn.Linear):
    """``nn.Linear`` for float32 on a CPU: the fastest product for each number of rows.

    The weight stays a plain view of the device range; nothing is repacked.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Multiply [..., in_features] to [..., out_features]."""
        rows = input.numel() // self.in_features
        if 1 < rows <= _TRANSPOSED_MAX_ROWS:
            flat = torch.mm(self.weight, input.reshape(rows, -1).t()).t()
            # Contiguous, or every later operation of the layer would stride.
            out = flat.contiguous() if self.bias is None else flat + self.bias
            return out.view(*input.shape[:-1], self.out_features)
        few = rows <= _ONEDNN_MAX_ROWS
        if _HAS_ONEDNN and few and self.out_features >= _ONEDNN_MIN_OUT_FEATURES:
            return _onednn(input, self.weight, self.bias)
        return F.linear(input, self.weight, self.bias)


def use_cpu_linear(module: nn.Module) -> None:
    """Replace every plain ``nn.Linear`` below ``module``, keeping its parameters."""
    for name, child in list(module.named_modules()):
        if type(child) is nn.Linear:
            fast = CpuLinear(child.in_features, child.out_features, device="meta")
            fast.weight, fast.bias = child.weight, child.bias
            module.set_submodule(name, fast)
