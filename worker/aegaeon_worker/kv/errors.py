"""Errors of KV memory."""

from __future__ import annotations


class KvMemoryError(Exception):
    """KV memory cannot be provided as asked."""


class OutOfHostBlocks(KvMemoryError):  # noqa: N818 (names a state that callers handle, not a fault)
    """The host slabs have no room for the blocks; none was taken."""


class PoolTooSmall(KvMemoryError):  # noqa: N818 (names a state that callers handle, not a fault)
    """Even with everything else evicted, the device pool cannot hold what was asked."""


class SequenceNotResident(KvMemoryError):  # noqa: N818 (names a state that callers handle)
    """The sequence's KV is not on the device."""
