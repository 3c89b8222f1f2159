"""A model's weights on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from aegaeon_worker.device.interface import CopyMark, Device, VirtualRange
from aegaeon_worker.weights.errors import WeightsNotResident
from aegaeon_worker.weights.layout import Stage, WeightLayout
from aegaeon_worker.weights.weight_file import WeightFile


class ResidentWeights:
    """Binds a model's packed file to a virtual range: all of it is on the device, or nothing.

    The file in the weight cache is always the clean copy, so unloading copies nothing back. The
    file stays in the cache for as long as the model is pinned, that is, has requests.
    """

    def __init__(
        self, device: Device, name: str, layout: WeightLayout, open_file: Callable[[], WeightFile]
    ) -> None:
        """Reserve addresses for ``layout``; ``open_file`` acquires the file from the cache."""
        self.name = name
        self.layout = layout
        self._device = device
        self._open_file = open_file
        self._range: VirtualRange = device.reserve(f"weights of {name}", layout.nbytes)
        self._positions = range(device.pool.chunks_for(layout.nbytes))
        self._file: WeightFile | None = None
        self._resident = False

    @property
    def num_chunks(self) -> int:
        """Chunks that the loaded weights occupy."""
        return len(self._positions)

    @property
    def resident(self) -> bool:
        """Whether every byte is on the device, its copy issued."""
        return self._resident

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor by name, at its address on the device for the life of this object.

        They may be made and bound at any time, and touched only while ``resident``.
        """
        return {
            slot.spec.name: self._range.tensor(slot.offset, slot.spec.dtype, slot.spec.shape)
            for slot in self.layout.slots()
        }

    def require_resident(self) -> None:
        """Raise ``WeightsNotResident`` unless the weights may be used."""
        if not self._resident:
            raise WeightsNotResident(f"the weights of {self.name} are not on the device")

    def pin(self) -> None:
        """Keep the file in the weight cache, packing it if need be. Idempotent."""
        if self._file is None:
            self._file = self._open_file()

    def unpin(self) -> None:
        """Let the cache evict the file. Idempotent."""
        if self._file is not None:
            self._device.synchronize()
            self._file.release()
            self._file = None

    def load(self) -> list[tuple[Stage, CopyMark]]:
        """Copy every stage to the device, in order; a mark per stage lets compute start early.

        Idempotent: nothing is copied (and no mark returned) if the weights are resident. An error
        gives every chunk back. ``OutOfChunks`` if the pool lacks room.
        """
        if self._resident:
            return []
        pinned_before = self._file is not None
        self.pin()
        try:
            self._range.map(self._positions)
            marks = self._copy_stages()
        except BaseException:
            self.unload()
            raise
        finally:
            if not pinned_before:
                self.unpin()
        self._resident = True
        return marks

    def unload(self) -> int:
        """Give the chunks back; return how many. Idempotent."""
        self._resident = False
        mapped = self._range.mapped
        self._device.synchronize()
        self._range.unmap(sorted(mapped))
        return len(mapped)

    def close(self) -> None:
        """Unload, unpin and end the reservation; the tensors must not be touched again."""
        self.unload()
        self.unpin()
        self._range.release()

    def _copy_stages(self) -> list[tuple[Stage, CopyMark]]:
        assert self._file is not None
        data = self._file.data
        marks: list[tuple[Stage, CopyMark]] = []
        for group in _copy_groups(self.layout.stages, self._device.copy_nbytes):
            start, end = group[0].start, group[-1].end
            self._device.copy_in(self._range, start, data[start:end])
            mark = self._device.mark()
            marks.extend((stage, mark) for stage in group)
        return marks


def _copy_groups(stages: Iterable[Stage], min_nbytes: int) -> Iterator[list[Stage]]:
    group: list[Stage] = []
    for stage in stages:
        group.append(stage)
        if stage.end - group[0].start >= min_nbytes:
            yield group
            group = []
    if group:
        yield group
