"""Linear layers on a CPU, where ``F.linear`` leaves half the memory speed unused for few rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from aegaeon_worker.models.onednn import onednn_available, onednn_product

#: Up to this many rows (from two on), the transposed product runs at memory speed.
_TRANSPOSED_MAX_ROWS = 4
#: Up to this many rows, oneDNN and shared products pay: above, oneDNN is no faster with
#: plain weights.
_FEW_ROWS = 64
#: oneDNN pays from this many weight rows on.
_ONEDNN_MIN_OUT_FEATURES = 512


_HAS_ONEDNN = onednn_available()


def product(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``rows`` [M, K] by ``weight`` [N, K], as [M, N], in whatever order of memory is fastest.

    A packed weight has one way to be multiplied, which is the fastest for any number of rows.
    """
    if weight.is_mkldnn:
        return onednn_product(rows, weight)
    count = rows.shape[0]
    if 1 < count <= _TRANSPOSED_MAX_ROWS:
        return torch.mm(weight, rows.t()).t()
    if _HAS_ONEDNN and count <= _FEW_ROWS and weight.shape[0] >= _ONEDNN_MIN_OUT_FEATURES:
        return onednn_product(rows, weight)
    return F.linear(rows, weight)


class SharedProduct:
    """One product for linear layers that are given the same tensor one after another.

    Their weights lie one after another, so together they are one matrix. The first layer computes
    for all; each other one takes its part if it is given the very same tensor.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        first = weights[0]
        self._sizes = [weight.shape[0] for weight in weights]
        self._weight = first.as_strided((sum(self._sizes), first.shape[1]), first.stride())
        self._input: torch.Tensor | None = None
        self._parts: tuple[torch.Tensor, ...] = ()

    def take(self, member: int, given: torch.Tensor, rows: torch.Tensor) -> torch.Tensor | None:
        """The part of ``member`` for ``given``, viewed as ``rows`` [M, K]; None if not at hand."""
        if member == 0:
            self._input = given
            self._parts = torch.split(product(rows, self._weight), self._sizes, 1)
        elif given is not self._input:
            return None
        part = self._parts[member]
        if member == len(self._sizes) - 1:
            self._input, self._parts = None, ()
        return part


class CpuLinear(nn.Linear):
    """``nn.Linear`` for float32 on a CPU: the fastest product for each number of rows.

    The weight stays a plain view of the device range; nothing is repacked.
    """

    shared: SharedProduct | None = None
    member: int = 0

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Multiply [..., in_features] to [..., out_features]."""
        rows = input.reshape(-1, self.in_features)
        out = None
        if self.shared is not None and rows.shape[0] <= _FEW_ROWS:
            out = self.shared.take(self.member, input, rows)
        if out is None:
            out = product(rows, self.weight)
        # Contiguous, or every later operation of the layer would stride.
        out = out.contiguous()
        if self.bias is not None:
            out += self.bias
        return out.view(*input.shape[:-1], self.out_features)


def use_cpu_linear(module: nn.Module, shared_inputs: Sequence[Sequence[str]]) -> None:
    """Replace every plain ``nn.Linear`` below ``module``, keeping its parameters.

    ``shared_inputs``: names of layers that are given the same tensor, in the order of their calls.
    """
    for name, child in list(module.named_modules()):
        if type(child) is nn.Linear:
            fast = CpuLinear(child.in_features, child.out_features, device="meta")
            fast.weight, fast.bias = child.weight, child.bias
            module.set_submodule(name, fast)
    for names in shared_inputs:
        layers = [
            layer for name in names if isinstance(layer := module.get_submodule(name), CpuLinear)
        ]
        weights = [layer.weight for layer in layers]
        if len(layers) == len(names) and _adjacent(weights):
            shared = SharedProduct(weights)
            for member, layer in enumerate(layers):
                layer.shared, layer.member = shared, member


def _adjacent(weights: Sequence[torch.Tensor]) -> bool:
    """Whether ``weights`` are dense, of one storage, and follow each other without a gap."""
    storage = weights[0].untyped_storage().data_ptr()
    expected = weights[0].data_ptr()
    for weight in weights:
        dense = weight.is_contiguous() and weight.untyped_storage().data_ptr() == storage
        if not dense or weight.data_ptr() != expected:
            return False
        expected += weight.nbytes
    return True
