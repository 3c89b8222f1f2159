"""The error family: what is wrong, where, and what to do.

Plain Python, so that policy code can raise it; `aegaeon.rpc.status` carries it over gRPC. Reasons
equal those of `proto/aegaeon/v1/errors.proto`, which documents each one's metadata.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class ErrorReason(enum.Enum):
    """Why something failed, for programs; values are the contract's enum numbers."""

    UNSPECIFIED = 0
    EMPTY_PROMPT = 1
    PROMPT_TOO_LONG = 2
    TOKEN_OUT_OF_VOCABULARY = 3
    INVALID_FIELD = 4
    MODEL_NOT_FOUND = 5
    MODEL_NOT_READY = 6
    QUEUE_FULL = 7
    INSUFFICIENT_MEMORY = 8
    CHECKPOINT_INVALID = 9
    MODEL_UNSUPPORTED = 10
    WORKER_LOST = 11
    TOPOLOGY_INVALID = 12
    CONTRACT_MISMATCH = 13
    ENGINE_FAULT = 14
    SHUTTING_DOWN = 15
    DEADLINE_EXCEEDED = 16
    CANCELLED = 17
    STALE_LEASE = 18
    MODEL_DRAINING = 19
    MODEL_CONFLICT = 20
    UNAUTHENTICATED = 21
    PERMISSION_DENIED = 22
    KV_NOT_FOUND = 23
    FEATURE_MISSING = 24


class AegaeonError(Exception):
    """Base of every error that this project raises on purpose.

    ``reason`` is for programs, the text for people, ``metadata`` holds the values named at the
    reason, as strings.
    """

    reason = ErrorReason.UNSPECIFIED

    def __init__(
        self,
        message: str,
        *,
        reason: ErrorReason | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if reason is not None:
            self.reason = reason
        self.metadata: dict[str, str] = {key: str(value) for key, value in (metadata or {}).items()}

    @property
    def retry_after_s(self) -> float | None:
        """When to try again, in seconds; None where that is unknown or cannot help."""
        try:
            return float(self.metadata["retry_after_ms"]) / 1e3
        except (KeyError, ValueError):
            return None

    @property
    def name(self) -> str:
        """Of the reason, in capitals, as command lines and reports show it."""
        return self.reason.name


class InvalidRequestError(AegaeonError):
    """The request itself is wrong; sending it again cannot help."""

    reason = ErrorReason.INVALID_FIELD


class NotFoundError(AegaeonError):
    """The named model is not deployed."""

    reason = ErrorReason.MODEL_NOT_FOUND


class ConflictError(AegaeonError):
    """The name is taken by something else."""

    reason = ErrorReason.MODEL_CONFLICT


class UnauthenticatedError(AegaeonError):
    """No key was given, or one that is not known."""

    reason = ErrorReason.UNAUTHENTICATED


class PermissionDeniedError(AegaeonError):
    """The key that was given is not for this."""

    reason = ErrorReason.PERMISSION_DENIED


class UnavailableError(AegaeonError):
    """Nobody can serve it right now; trying again later can help."""

    reason = ErrorReason.MODEL_NOT_READY


class NotRunningError(UnavailableError):
    """Nothing answers at the address, or no instance of that name runs."""

    reason = ErrorReason.SHUTTING_DOWN

    @property
    def name(self) -> str:
        """What no peer answers, so that the contract has no reason for it."""
        return "NOT_RUNNING"


class ResourceExhaustedError(AegaeonError):
    """A limit or a memory budget is reached."""

    reason = ErrorReason.QUEUE_FULL


class PreconditionError(AegaeonError):
    """Something must be changed first: files, topology, versions, leases."""

    reason = ErrorReason.TOPOLOGY_INVALID


class ModelLoadError(PreconditionError):
    """A checkpoint cannot be served: files missing, truncated or inconsistent."""

    reason = ErrorReason.CHECKPOINT_INVALID


class ModelUnsupportedError(ModelLoadError):
    """A checkpoint is sound, but its architecture cannot be served."""

    reason = ErrorReason.MODEL_UNSUPPORTED


class RequestCancelledError(AegaeonError):
    """The request was cancelled by its caller."""

    reason = ErrorReason.CANCELLED


class RequestTimeoutError(AegaeonError):
    """A deadline passed."""

    reason = ErrorReason.DEADLINE_EXCEEDED


class EngineError(AegaeonError):
    """The engine failed on this request; a report is in the worker's log."""

    reason = ErrorReason.ENGINE_FAULT


class ConfigError(AegaeonError, ValueError):
    """A configuration file or object is wrong: names file, key, and the nearest valid key."""

    reason = ErrorReason.INVALID_FIELD
