"""Errors of a node's shared memory and weight cache."""

from __future__ import annotations

from pathlib import Path

from aegaeon.errors import ConflictError, EngineError, ErrorReason, ResourceExhaustedError


class NodeMemoryError(ResourceExhaustedError):
    """The node's shared host memory cannot be provided as asked."""

    reason = ErrorReason.INSUFFICIENT_MEMORY


class SharedMemoryFull(NodeMemoryError):  # noqa: N818 (names a state that callers handle)
    """The file system of the shared directory lacks room."""

    def __init__(self, directory: Path, purpose: str, needed: int, available: int) -> None:
        super().__init__(
            f"{purpose} needs {needed} bytes in {directory}, but only {available} bytes are "
            f"available there; choose another shared-memory directory, make it larger "
            f"(in a container: --shm-size), or lower the budget",
            metadata={"needed_bytes": needed, "available_bytes": available},
        )


class WeightCacheFull(NodeMemoryError):  # noqa: N818 (names a state that callers handle)
    """The budget does not hold the model beside the models in use."""


class InstanceInUse(ConflictError):  # noqa: N818 (names a state that callers handle)
    """Another service, or another user, holds the instance name."""


class WeightsInUse(ConflictError):  # noqa: N818 (names a state that callers handle)
    """The files of a model cannot be removed, because a worker uses them."""


class WeightsNotResident(EngineError):  # noqa: N818 (names a state that callers handle)
    """The model's weights are not, or only partly, on the device."""
