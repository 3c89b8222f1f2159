from aegaeon.v1 import errors_pb2 as _errors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    DATA_TYPE_FLOAT32: _ClassVar[DataType]
    DATA_TYPE_BFLOAT16: _ClassVar[DataType]
    DATA_TYPE_FLOAT16: _ClassVar[DataType]

class ReplicaState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICA_STATE_UNSPECIFIED: _ClassVar[ReplicaState]
    REPLICA_STATE_ABSENT: _ClassVar[ReplicaState]
    REPLICA_STATE_LOADING: _ClassVar[ReplicaState]
    REPLICA_STATE_READY: _ClassVar[ReplicaState]
    REPLICA_STATE_DRAINING: _ClassVar[ReplicaState]
    REPLICA_STATE_FAILED: _ClassVar[ReplicaState]
DATA_TYPE_UNSPECIFIED: DataType
DATA_TYPE_FLOAT32: DataType
DATA_TYPE_BFLOAT16: DataType
DATA_TYPE_FLOAT16: DataType
REPLICA_STATE_UNSPECIFIED: ReplicaState
REPLICA_STATE_ABSENT: ReplicaState
REPLICA_STATE_LOADING: ReplicaState
REPLICA_STATE_READY: ReplicaState
REPLICA_STATE_DRAINING: ReplicaState
REPLICA_STATE_FAILED: ReplicaState

class ModelSpec(_message.Message):
    __slots__ = ("name", "path", "dtype", "max_model_len", "trust_remote_code", "ttft_slo_ns", "tpot_slo_ns", "no_prefix_caching", "tool_parser")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    TRUST_REMOTE_CODE_FIELD_NUMBER: _ClassVar[int]
    TTFT_SLO_NS_FIELD_NUMBER: _ClassVar[int]
    TPOT_SLO_NS_FIELD_NUMBER: _ClassVar[int]
    NO_PREFIX_CACHING_FIELD_NUMBER: _ClassVar[int]
    TOOL_PARSER_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    dtype: DataType
    max_model_len: int
    trust_remote_code: bool
    ttft_slo_ns: int
    tpot_slo_ns: int
    no_prefix_caching: bool
    tool_parser: str
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., dtype: _Optional[_Union[DataType, str]] = ..., max_model_len: _Optional[int] = ..., trust_remote_code: _Optional[bool] = ..., ttft_slo_ns: _Optional[int] = ..., tpot_slo_ns: _Optional[int] = ..., no_prefix_caching: _Optional[bool] = ..., tool_parser: _Optional[str] = ...) -> None: ...

class ModelFacts(_message.Message):
    __slots__ = ("fingerprint", "packed_bytes", "kv_block_bytes", "kv_block_tokens", "vocab_size", "max_model_len", "eos_token_ids")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PACKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    fingerprint: str
    packed_bytes: int
    kv_block_bytes: int
    kv_block_tokens: int
    vocab_size: int
    max_model_len: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, fingerprint: _Optional[str] = ..., packed_bytes: _Optional[int] = ..., kv_block_bytes: _Optional[int] = ..., kv_block_tokens: _Optional[int] = ..., vocab_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("node_id", "state", "active_requests", "error")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    state: ReplicaState
    active_requests: int
    error: _errors_pb2.ErrorDetail
    def __init__(self, node_id: _Optional[str] = ..., state: _Optional[_Union[ReplicaState, str]] = ..., active_requests: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("spec", "facts", "replicas")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    spec: ModelSpec
    facts: ModelFacts
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    def __init__(self, spec: _Optional[_Union[ModelSpec, _Mapping]] = ..., facts: _Optional[_Union[ModelFacts, _Mapping]] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelInfo]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelInfo, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: ModelInfo
    def __init__(self, model: _Optional[_Union[ModelInfo, _Mapping]] = ...) -> None: ...

class DeployModelRequest(_message.Message):
    __slots__ = ("spec", "replica_count", "node_ids")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    spec: ModelSpec
    replica_count: int
    node_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, spec: _Optional[_Union[ModelSpec, _Mapping]] = ..., replica_count: _Optional[int] = ..., node_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class DeployModelResponse(_message.Message):
    __slots__ = ("progress", "result")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    progress: DeployProgress
    result: DeployResult
    def __init__(self, progress: _Optional[_Union[DeployProgress, _Mapping]] = ..., result: _Optional[_Union[DeployResult, _Mapping]] = ...) -> None: ...

class DeployProgress(_message.Message):
    __slots__ = ("node_id", "state", "packed_bytes", "total_bytes")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PACKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    state: ReplicaState
    packed_bytes: int
    total_bytes: int
    def __init__(self, node_id: _Optional[str] = ..., state: _Optional[_Union[ReplicaState, str]] = ..., packed_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class DeployResult(_message.Message):
    __slots__ = ("ready_node_ids", "failed", "evicted")
    READY_NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    ready_node_ids: _containers.RepeatedScalarFieldContainer[str]
    failed: _containers.RepeatedCompositeFieldContainer[NodeFailure]
    evicted: _containers.RepeatedCompositeFieldContainer[EvictedReplica]
    def __init__(self, ready_node_ids: _Optional[_Iterable[str]] = ..., failed: _Optional[_Iterable[_Union[NodeFailure, _Mapping]]] = ..., evicted: _Optional[_Iterable[_Union[EvictedReplica, _Mapping]]] = ...) -> None: ...

class NodeFailure(_message.Message):
    __slots__ = ("node_id", "error")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    error: _errors_pb2.ErrorDetail
    def __init__(self, node_id: _Optional[str] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ...) -> None: ...

class EvictedReplica(_message.Message):
    __slots__ = ("node_id", "model")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    model: str
    def __init__(self, node_id: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class UndeployModelRequest(_message.Message):
    __slots__ = ("name", "node_ids")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    node_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., node_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class UndeployModelResponse(_message.Message):
    __slots__ = ("removed_node_ids", "failed")
    REMOVED_NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    removed_node_ids: _containers.RepeatedScalarFieldContainer[str]
    failed: _containers.RepeatedCompositeFieldContainer[NodeFailure]
    def __init__(self, removed_node_ids: _Optional[_Iterable[str]] = ..., failed: _Optional[_Iterable[_Union[NodeFailure, _Mapping]]] = ...) -> None: ...
