"""Rank 0's device, whose memory the other ranks map and fill alike.

All ranks have equal layouts, KV blocks and pools, so that rank 0 keeps the books for all: where it
maps a chunk or copies a block, every rank does the same with its own part, in the same order
relative to the steps.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from aegaeon_worker.device.interface import CopyLane, CopyMark, CopyTail, Device, VirtualRange
from aegaeon_worker.device.pool import DevicePool
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.parallel.errors import GroupBroken
from aegaeon_worker.parallel.followers import Followers
from aegaeon_worker.parallel.frames import Kind, number_frame, object_frame

LANES = (CopyLane.WEIGHTS, CopyLane.KV)


class MirroredRange:
    """A ``VirtualRange`` that every rank has; ``GroupBroken`` means that nothing has changed."""

    def __init__(
        self, own: VirtualRange, number: int, lane: CopyLane, followers: Followers
    ) -> None:
        self.own = own
        self.number = number
        self.lane = lane
        self._followers = followers

    @property
    def name(self) -> str:
        """See ``VirtualRange``."""
        return self.own.name

    @property
    def nbytes(self) -> int:
        """See ``VirtualRange``."""
        return self.own.nbytes

    @property
    def mapped(self) -> frozenset[int]:
        """See ``VirtualRange``."""
        return self.own.mapped

    def chunk(self, position: int) -> int:
        """See ``VirtualRange``."""
        return self.own.chunk(position)

    def map(self, positions: Iterable[int]) -> None:
        """See ``VirtualRange``."""
        wanted = list(positions)
        self.own.map(wanted)
        if wanted:
            try:
                self._tell(Kind.MAP, wanted)
            except GroupBroken:
                self.own.unmap(wanted)
                raise

    def unmap(self, positions: Iterable[int]) -> None:
        """See ``VirtualRange``."""
        leaving = list(positions)
        # First, so that nothing has changed here when a rank is gone.
        if leaving:
            self._tell(Kind.UNMAP, leaving)
        self.own.unmap(leaving)

    def tensor(self, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """See ``VirtualRange``."""
        return self.own.tensor(offset, dtype, shape)

    def release(self) -> None:
        """See ``VirtualRange``."""
        self._tell(Kind.RELEASE, ())
        self.own.release()

    def _tell(self, kind: Kind, positions: Iterable[int]) -> None:
        if not self._followers.closed:
            self._followers.send(number_frame(kind, [self.number, *positions]))


class _MirroredMark:
    """A ``CopyMark`` that all ranks have to pass."""

    def __init__(self, own: CopyMark, followers: Followers, number: int) -> None:
        self._own = own
        self._followers = followers
        self._number = number

    @property
    def done(self) -> bool:
        """See ``CopyMark``."""
        return self._own.done and self._followers.reached(self._number)

    def wait(self) -> None:
        """See ``CopyMark``; every rank orders its own compute."""
        self._own.wait()


class MirroredDevice:
    """See ``Device``. Once the group is given up it is rank 0's own device alone."""

    def __init__(self, own: Device, slabs: HostSlabs, followers: Followers) -> None:
        self._own = own
        self._slabs = slabs
        self._followers = followers
        self._numbers = 0
        self.copy_nbytes = own.copy_nbytes

    @property
    def name(self) -> str:
        """See ``Device``."""
        return self._own.name

    @property
    def torch_device(self) -> torch.device:
        """See ``Device``."""
        return self._own.torch_device

    @property
    def pool(self) -> DevicePool:
        """See ``Device``: the pool of every rank."""
        return self._own.pool

    def reserve(self, name: str, nbytes: int, lane: CopyLane) -> MirroredRange:
        """See ``Device``."""
        own = self._own.reserve(name, nbytes, lane)
        self._numbers += 1
        reserved = MirroredRange(own, self._numbers, lane, self._followers)
        try:
            self._followers.send(
                object_frame(
                    Kind.RESERVE,
                    number=reserved.number,
                    name=name,
                    nbytes=nbytes,
                    lane=LANES.index(lane),
                )
            )
        except GroupBroken:
            own.release()
            raise
        return reserved

    def fence_copies(self) -> None:
        """See ``Device``."""
        self._own.fence_copies()
        self._tell(number_frame(Kind.FENCE_COPIES))

    def fence_compute(self) -> None:
        """See ``Device``."""
        self._own.fence_compute()
        self._tell(number_frame(Kind.FENCE_COMPUTE))

    def copy_in(self, target: VirtualRange, offset: int, source: torch.Tensor) -> None:
        """See ``Device``; the source is a part of rank 0's weight file, or its piece of blocks."""
        assert isinstance(target, MirroredRange)
        if target.lane is CopyLane.WEIGHTS:
            # Before rank 0's own, so that all links are busy at once.
            self._tell(
                number_frame(Kind.COPY_WEIGHTS, [target.number, offset, offset + source.nbytes])
            )
        else:
            place = [target.number, offset, self._slabs.offset_of(source), source.nbytes]
            self._tell(number_frame(Kind.COPY_IN, place))
        self._own.copy_in(target.own, offset, source)

    def copy_out(self, source: VirtualRange, offset: int, target: torch.Tensor) -> None:
        """See ``Device``; the target is rank 0's piece of blocks."""
        assert isinstance(source, MirroredRange)
        place = [source.number, offset, self._slabs.offset_of(target), target.nbytes]
        self._tell(number_frame(Kind.COPY_OUT, place))
        self._own.copy_out(source.own, offset, target)

    def mark(self, lane: CopyLane) -> CopyMark:
        """See ``Device``: of all ranks' copies of KV, which host memory depends on."""
        own = self._own.mark(lane)
        if lane is CopyLane.WEIGHTS or self._followers.closed:
            return own
        return _MirroredMark(own, self._followers, self._followers.mark(LANES.index(lane)))

    def tail(self) -> CopyTail:
        """See ``Device``: rank 0's, which has as much to copy as the others."""
        return self._own.tail()

    def synchronize(self, lane: CopyLane) -> None:
        """See ``Device``: with all ranks where host memory depends on it."""
        number = None
        if lane is CopyLane.KV and not self._followers.closed:
            number = self._followers.mark(LANES.index(lane))
        self._own.synchronize(lane)
        if number is not None:
            self._followers.wait(number)

    def pin_host(self, address: int, nbytes: int, *, read_only: bool) -> None:
        """See ``Device``."""
        self._own.pin_host(address, nbytes, read_only=read_only)

    def host_pinned(self, address: int) -> bool:
        """See ``Device``."""
        return self._own.host_pinned(address)

    def unpin_host(self, address: int) -> None:
        """See ``Device``."""
        self._own.unpin_host(address)

    def close(self) -> None:
        """See ``Device``."""
        self._own.close()

    def _tell(self, frame: bytes) -> None:
        if not self._followers.closed:
            self._followers.send(frame)
