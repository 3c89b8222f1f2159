from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_EMPTY_PROMPT: _ClassVar[ErrorReason]
    ERROR_REASON_PROMPT_TOO_LONG: _ClassVar[ErrorReason]
    ERROR_REASON_TOKEN_OUT_OF_VOCABULARY: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_FIELD: _ClassVar[ErrorReason]
    ERROR_REASON_MODEL_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_MODEL_NOT_READY: _ClassVar[ErrorReason]
    ERROR_REASON_QUEUE_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_INSUFFICIENT_MEMORY: _ClassVar[ErrorReason]
    ERROR_REASON_CHECKPOINT_INVALID: _ClassVar[ErrorReason]
    ERROR_REASON_MODEL_UNSUPPORTED: _ClassVar[ErrorReason]
    ERROR_REASON_WORKER_LOST: _ClassVar[ErrorReason]
    ERROR_REASON_TOPOLOGY_INVALID: _ClassVar[ErrorReason]
    ERROR_REASON_CONTRACT_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_ENGINE_FAULT: _ClassVar[ErrorReason]
    ERROR_REASON_SHUTTING_DOWN: _ClassVar[ErrorReason]
    ERROR_REASON_DEADLINE_EXCEEDED: _ClassVar[ErrorReason]
    ERROR_REASON_CANCELLED: _ClassVar[ErrorReason]
    ERROR_REASON_STALE_LEASE: _ClassVar[ErrorReason]
    ERROR_REASON_MODEL_DRAINING: _ClassVar[ErrorReason]
    ERROR_REASON_MODEL_CONFLICT: _ClassVar[ErrorReason]
    ERROR_REASON_UNAUTHENTICATED: _ClassVar[ErrorReason]
    ERROR_REASON_PERMISSION_DENIED: _ClassVar[ErrorReason]
    ERROR_REASON_KV_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_FEATURE_MISSING: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_EMPTY_PROMPT: ErrorReason
ERROR_REASON_PROMPT_TOO_LONG: ErrorReason
ERROR_REASON_TOKEN_OUT_OF_VOCABULARY: ErrorReason
ERROR_REASON_INVALID_FIELD: ErrorReason
ERROR_REASON_MODEL_NOT_FOUND: ErrorReason
ERROR_REASON_MODEL_NOT_READY: ErrorReason
ERROR_REASON_QUEUE_FULL: ErrorReason
ERROR_REASON_INSUFFICIENT_MEMORY: ErrorReason
ERROR_REASON_CHECKPOINT_INVALID: ErrorReason
ERROR_REASON_MODEL_UNSUPPORTED: ErrorReason
ERROR_REASON_WORKER_LOST: ErrorReason
ERROR_REASON_TOPOLOGY_INVALID: ErrorReason
ERROR_REASON_CONTRACT_MISMATCH: ErrorReason
ERROR_REASON_ENGINE_FAULT: ErrorReason
ERROR_REASON_SHUTTING_DOWN: ErrorReason
ERROR_REASON_DEADLINE_EXCEEDED: ErrorReason
ERROR_REASON_CANCELLED: ErrorReason
ERROR_REASON_STALE_LEASE: ErrorReason
ERROR_REASON_MODEL_DRAINING: ErrorReason
ERROR_REASON_MODEL_CONFLICT: ErrorReason
ERROR_REASON_UNAUTHENTICATED: ErrorReason
ERROR_REASON_PERMISSION_DENIED: ErrorReason
ERROR_REASON_KV_NOT_FOUND: ErrorReason
ERROR_REASON_FEATURE_MISSING: ErrorReason

class ErrorDetail(_message.Message):
    __slots__ = ("reason", "message", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    reason: ErrorReason
    message: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, reason: _Optional[_Union[ErrorReason, str]] = ..., message: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...
