"""Errors of device memory."""

from __future__ import annotations

from aegaeon.errors import ErrorReason, PreconditionError, ResourceExhaustedError


class DeviceMemoryError(ResourceExhaustedError):
    """Device memory cannot be provided as asked."""

    reason = ErrorReason.INSUFFICIENT_MEMORY


class OutOfChunks(DeviceMemoryError):  # noqa: N818 (names a state that callers handle, not a fault)
    """The pool has fewer free chunks than asked for; nothing was taken."""

    def __init__(self, owner: str, needed: int, free: int, total: int, chunk_nbytes: int) -> None:
        self.needed = needed
        super().__init__(
            f"{owner} needs {needed} chunks of {chunk_nbytes} bytes, but only {free} of {total} "
            f"are free; evict weights or KV first, or give the worker more device memory",
            metadata={
                "needed_bytes": needed * chunk_nbytes,
                "available_bytes": free * chunk_nbytes,
            },
        )


class DeviceUnavailable(PreconditionError):  # noqa: N818 (as OutOfChunks)
    """The device asked for is not there, lacks something, or belongs to another process."""


class CudaError(DeviceMemoryError):
    """The CUDA driver refused a call."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call} failed with {name} ({code})")
        self.call = call
        self.code = code
