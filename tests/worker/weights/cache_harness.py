"""A tiny layout and what fills it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from aegaeon_worker.weights.layout import TensorSpec, WeightLayout

PAGE = os.sysconf("SC_PAGESIZE")


LAYOUT = WeightLayout.place(
    [
        ("embed", [TensorSpec("wte", torch.float32, (16, 16))]),
        (
            "layer 0",
            [TensorSpec("w", torch.bfloat16, (3, 7)), TensorSpec("b", torch.float32, (1,))],
        ),
    ]
)


#: What one file of LAYOUT occupies: a page of header and a page of data.
FILE_NBYTES = 2 * PAGE


Fill = Callable[[Mapping[str, torch.Tensor]], None]


def fill_with(value: float, calls: list[float] | None = None) -> Fill:
    def fill(views: Mapping[str, torch.Tensor]) -> None:
        if calls is not None:
            calls.append(value)
        for view in views.values():
            view.fill_(value)

    return fill


def never(views: Mapping[str, torch.Tensor]) -> None:
    raise AssertionError(f"packed again: {list(views)}")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())
