"""Where every tensor of a packed model lies.

A model is packed once into one contiguous file whose byte layout equals its device range, so a
switch is a few large copies. Tensors are grouped into stages in execution order (embeddings, each
decoder layer, final norm and head), so copies can be issued stage by stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

#: Every tensor starts at a multiple of this, in bytes: enough for any vector load.
TENSOR_ALIGNMENT = 256


@dataclass(frozen=True)
class TensorSpec:
    """One tensor before it has a place: its parameter name in the served module, dtype, shape."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize


@dataclass(frozen=True)
class TensorSlot:
    """A tensor with its place: ``offset`` in bytes from the start of the file and of the range."""

    spec: TensorSpec
    offset: int


@dataclass(frozen=True)
class Stage:
    """Consecutive slots that are needed together: bytes ``[start, end)`` of the layout."""

    name: str
    start: int
    end: int
    slots: tuple[TensorSlot, ...]


@dataclass(frozen=True)
class WeightLayout:
    """All stages of a model, in execution order, without gaps other than alignment."""

    stages: tuple[Stage, ...]

    @classmethod
    def place(cls, groups: Iterable[tuple[str, Iterable[TensorSpec]]]) -> WeightLayout:
        """Lay out the named groups one after another, each tensor aligned."""
        stages: list[Stage] = []
        offset = 0
        for name, specs in groups:
            start, slots = offset, []
            for spec in specs:
                slots.append(TensorSlot(spec, offset))
                offset += -(-spec.nbytes // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
            stages.append(Stage(name, start, offset, tuple(slots)))
        return cls(tuple(stages))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole layout, alignment included."""
        return self.stages[-1].end if self.stages else 0

    def slots(self) -> Iterator[TensorSlot]:
        """Every slot, in order."""
        for stage in self.stages:
            yield from stage.slots
