"""Decode steps of a large model, as far as a hand-off could disturb them."""

from __future__ import annotations

import time

import torch

_BATCH, _HIDDEN, _WIDE, _LAYERS = 32, 4096, 12288, 36


class DecodeSteps:
    """The matrix products of a model with 7 billion parameters in its layers, in one CUDA graph.

    They read as many bytes of weights as a decode step of that model does, which is what limits it.
    """

    def __init__(self, device: torch.device) -> None:
        shapes = [
            (_HIDDEN + _HIDDEN // 2, _HIDDEN),
            (_HIDDEN, _HIDDEN),
            (2 * _WIDE, _HIDDEN),
            (_HIDDEN, _WIDE),
        ]
        options = {"device": device, "dtype": torch.bfloat16}
        weights = [[torch.zeros(shape, **options) for shape in shapes] for _ in range(_LAYERS)]  # type: ignore[call-overload]
        inputs = {
            width: torch.zeros(_BATCH, width, **options)  # type: ignore[call-overload]
            for width in (_HIDDEN, _WIDE)
        }

        def step() -> None:
            for layer in weights:
                for matrix in layer:
                    torch.mm(inputs[matrix.shape[1]], matrix.T)

        step()
        torch.cuda.synchronize(device)
        self._device = device
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            step()

    def run(self) -> float:
        """One step, and the time until the host knows that it is over, in milliseconds."""
        start = time.perf_counter()
        self._graph.replay()
        torch.cuda.current_stream(self._device).synchronize()
        return (time.perf_counter() - start) * 1e3
