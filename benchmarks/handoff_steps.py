"""Decode steps of a large model, as far as a hand-off could disturb them."""

from __future__ import annotations

import time
from collections import deque

import torch

_BATCH, _HIDDEN, _WIDE, _LAYERS = 32, 4096, 12288, 36


class DecodeSteps:
    """The matrix products of a model with 7 billion parameters in its layers, in one CUDA graph.

    They read as many bytes of weights as a decode step of that model does, which is what limits it.
    As in an engine, a step is issued while the one before runs.
    """

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        """``priority`` is that of the stream on which the graph is captured."""
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
        self._weights = weights  # the graph reads them
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
        with torch.cuda.graph(self._graph, stream=stream):
            step()
        self._issued: deque[torch.cuda.Event] = deque()
        self._seen = 0.0

    def start(self) -> None:
        """Issue the first step."""
        assert not self._issued
        self._issue()
        self._seen = time.perf_counter()

    def run(self) -> float:
        """Issue a step and wait for the one before; milliseconds since the end of that before it.

        Both ends are when the host knew of them.
        """
        self._issue()
        self._issued.popleft().synchronize()
        before, self._seen = self._seen, time.perf_counter()
        return (self._seen - before) * 1e3

    def stop(self) -> None:
        """Wait for the last step."""
        self._issued.popleft().synchronize()

    def _issue(self) -> None:
        self._graph.replay()
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._issued.append(event)
