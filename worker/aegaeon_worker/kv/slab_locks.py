"""Which worker of a node owns which slab, in a table that the kernel keeps."""

from __future__ import annotations

import fcntl
import os
import struct

_FLOCK = struct.Struct("hhqqi4x")


class SlabLocks:
    """Owning slab ``s`` is a lock on byte ``s`` of the slabs' file, which a dead worker loses."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # The kernel does not tell an owner of its own locks.
        self._own: set[int] = set()

    def lock(self, slab: int) -> bool:
        """Become the owner; false if another worker is."""
        locked = self._set(slab, fcntl.F_WRLCK)
        if locked:
            self._own.add(slab)
        return locked

    def unlock(self, slab: int) -> None:
        """Give a slab up."""
        self._set(slab, fcntl.F_UNLCK)
        self._own.discard(slab)

    def is_free(self, slab: int) -> bool:
        """Whether nobody owns the slab at this moment."""
        if slab in self._own:
            return False
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slab, 1, 0)
        found = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, request)
        return bool(_FLOCK.unpack(found)[0] == fcntl.F_UNLCK)

    def most_are_free(self, num_slabs: int) -> bool:
        """Whether more than half of them are nobody's."""
        return 2 * sum(self.is_free(slab) for slab in range(num_slabs)) > num_slabs

    def _set(self, slab: int, kind: int) -> bool:
        request = _FLOCK.pack(kind, os.SEEK_SET, slab, 1, 0)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, request)
        except (BlockingIOError, PermissionError):
            return False
        return True
