"""Errors of KV memory."""

from __future__ import annotations

from aegaeon.errors import EngineError, ErrorReason, ResourceExhaustedError


class KvMemoryError(ResourceExhaustedError):
    """KV memory cannot be provided as asked."""

    reason = ErrorReason.INSUFFICIENT_MEMORY


class OutOfHostBlocks(KvMemoryError):  # noqa: N818 (names a state that callers handle, not a fault)
    """The host slabs have no room for the blocks; none was taken."""


class PoolTooSmall(KvMemoryError):  # noqa: N818 (names a state that callers handle, not a fault)
    """Even with everything else evicted, the device pool cannot hold what was asked."""


class SequenceNotResident(EngineError):  # noqa: N818 (names a state that callers handle)
    """The sequence's KV is not on the device."""
