"""Which weights of the native decoder are stored packed for products on CPUs."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from aegaeon_worker.models.native.plan import EMBEDDING, DecoderPlan
from aegaeon_worker.models.onednn import OneDnnFormat, onednn_format


class LinearPacking:
    """Formats of packed weights by name; the others, and the embedding, stay plain.

    A packed weight has as many bytes as a plain one, in its place in the layout.
    """

    def __init__(self, formats: Mapping[str, OneDnnFormat]) -> None:
        self._formats = formats

    @classmethod
    def choose(cls, plan: DecoderPlan, device: torch.device, dtype: torch.dtype) -> LinearPacking:
        """Every product of a float32 model on a CPU that has a format; none elsewhere."""
        formats = {}
        if device.type == "cpu" and dtype == torch.float32:
            for _, tensors in plan.stages:
                for tensor in tensors:
                    if len(tensor.shape) == 2 and tensor.name != EMBEDDING:
                        formats[tensor.name] = onednn_format((tensor.shape[0], tensor.shape[1]))
        return cls({name: found for name, found in formats.items() if found is not None})

    def tag(self, name: str) -> bytes:
        """Part of a fingerprint; empty for a plain tensor."""
        found = self._formats.get(name)
        return found.tag if found is not None else b""

    def pack(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Rewrite what is to be packed of ``tensors``, each in its place."""
        for name, tensor in tensors.items():
            if name in self._formats:
                self._formats[name].pack(tensor)

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """``tensors`` with the packed ones as what they are; nothing is read."""
        return {
            name: self._formats[name].over(tensor) if name in self._formats else tensor
            for name, tensor in tensors.items()
        }
