"""A model's weights on the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from aegaeon_worker.device.errors import OutOfChunks
from aegaeon_worker.device.interface import CopyLane, Device, VirtualRange
from aegaeon_worker.weights.errors import WeightsNotResident
from aegaeon_worker.weights.layout import Stage, WeightLayout
from aegaeon_worker.weights.stage_gate import StageGate
from aegaeon_worker.weights.weight_file import WeightFile


def weights_range(model: str) -> str:
    """What the device calls the range of a model's weights."""
    return f"weights of {model}"


class ResidentWeights:
    """Binds a model's packed file to a virtual range.

    The file in the weight cache is always the clean copy, so unloading copies nothing back. The
    file stays in the cache for as long as the model is pinned, that is, has requests. Loading takes
    every chunk at once and then copies stage by stage, at a stretch or in the background.
    """

    def __init__(
        self, device: Device, name: str, layout: WeightLayout, open_file: Callable[[], WeightFile]
    ) -> None:
        """Reserve addresses for ``layout``; ``open_file`` acquires the file from the cache."""
        self.name = name
        self.layout = layout
        self.gate = StageGate(layout)
        """What compute waits for, stage by stage, after ``load``."""
        self._device = device
        self._open_file = open_file
        self._range: VirtualRange = device.reserve(
            weights_range(name), layout.nbytes, CopyLane.WEIGHTS
        )
        self._positions = range(device.pool.chunks_for(layout.nbytes))
        self._file: WeightFile | None = None
        self._pinned = False
        self._uncopied: deque[Stage] = deque()

    @property
    def num_chunks(self) -> int:
        """Chunks that the loaded weights occupy."""
        return len(self._positions)

    @property
    def mapped(self) -> bool:
        """Whether the weights occupy their chunks, copied or not."""
        return bool(self._range.mapped)

    @property
    def resident(self) -> bool:
        """Whether every byte is on the device, its copy issued."""
        return self.mapped and not self._uncopied

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
        if not self.resident:
            raise WeightsNotResident(f"the weights of {self.name} are not on the device")

    def pin(self) -> None:
        """Keep the file in the weight cache, packing it if need be. Idempotent."""
        self._open()
        self._pinned = True

    def unpin(self) -> None:
        """Let the cache evict the file once it is not being copied. Idempotent."""
        self._pinned = False
        if not self._uncopied:
            self._close_file()

    def load(self) -> int:
        """Issue every copy not issued yet, in order; return their bytes, 0 if there was none.

        Compute then waits for ``gate``. Idempotent. An error gives every chunk back.
        ``OutOfChunks`` if the pool lacks room.
        """
        return self._copying(self._device.copy_nbytes, at_once=True)

    def load_piece(self, nbytes: int) -> int:
        """Issue the next stages' copies, of about ``nbytes``; return how many bytes that were.

        0, and nothing new, while the link is busy with them and once the weights are resident. The
        first call takes the chunks of all weights. Errors as ``load``.
        """
        if self.resident or self.gate.busy:
            return 0
        return self._copying(nbytes, at_once=False)

    def unload(self) -> int:
        """Give the chunks back; return how many. Idempotent."""
        leaving = sorted(self._range.mapped)
        if leaving:
            self._device.synchronize(CopyLane.WEIGHTS)
            self._range.unmap(leaving)
        self.gate.reset()
        self._uncopied.clear()
        if not self._pinned:
            self._close_file()
        return len(leaving)

    def close(self) -> None:
        """Unload, unpin and end the reservation; the tensors must not be touched again."""
        self.unload()
        self.unpin()
        self._range.release()

    def _copying(self, nbytes: int, *, at_once: bool) -> int:
        if self.resident:
            return 0
        self._open()
        copied = 0
        try:
            if not self.mapped:
                self._begin(at_once=at_once)
            while self._uncopied:
                copied += self._copy_next(nbytes)
                if not at_once:
                    break
        except BaseException:
            self.unload()
            raise
        if not self._uncopied and not self._pinned:
            self._close_file()
        return copied

    def _begin(self, *, at_once: bool) -> None:
        pool = self._device.pool
        if not at_once:
            self._range.map(self._positions)
        elif self.num_chunks > pool.num_free:
            name = self._range.name
            free, total = pool.num_free, pool.num_chunks
            raise OutOfChunks(name, self.num_chunks, free, total, pool.chunk_nbytes)
        self._uncopied.extend(self.layout.stages)

    def _map_until(self, end: int) -> None:
        """Map what the next copy needs: the rest is mapped while it runs."""
        mapped = len(self._range.mapped)
        needed = self._device.pool.chunks_for(end)
        if needed > mapped:
            self._range.map(self._positions[mapped:needed])

    def _copy_next(self, nbytes: int) -> int:
        """Copy the next stages that together have at least ``nbytes``, or the rest."""
        group = [self._uncopied.popleft()]
        start = group[0].start
        while self._uncopied and group[-1].end - start < nbytes:
            group.append(self._uncopied.popleft())
        end = group[-1].end
        assert self._file is not None
        self._map_until(end)
        self._device.copy_in(self._range, start, self._file.data[start:end])
        self.gate.hold(group, self._device.mark(CopyLane.WEIGHTS))
        return end - start

    def _open(self) -> None:
        if self._file is None:
            self._file = self._open_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._device.synchronize(CopyLane.WEIGHTS)
            self._file.release()
            self._file = None
