from aegaeon.v1 import worker_pb2 as _worker_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadKvRequest(_message.Message):
    __slots__ = ("kv", "content", "first_byte")
    KV_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    FIRST_BYTE_FIELD_NUMBER: _ClassVar[int]
    kv: _worker_pb2.KvPlace
    content: int
    first_byte: int
    def __init__(self, kv: _Optional[_Union[_worker_pb2.KvPlace, _Mapping]] = ..., content: _Optional[int] = ..., first_byte: _Optional[int] = ...) -> None: ...

class ReadKvResponse(_message.Message):
    __slots__ = ("offset", "crc32", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    crc32: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., crc32: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...
