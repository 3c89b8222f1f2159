from aegaeon.v1 import errors_pb2 as _errors_pb2
from aegaeon.v1 import inference_pb2 as _inference_pb2
from aegaeon.v1 import model_pb2 as _model_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EngineRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENGINE_ROLE_UNSPECIFIED: _ClassVar[EngineRole]
    ENGINE_ROLE_SIMPLE: _ClassVar[EngineRole]
    ENGINE_ROLE_PREFILL: _ClassVar[EngineRole]
    ENGINE_ROLE_DECODE: _ClassVar[EngineRole]

class TurnStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TURN_STAGE_UNSPECIFIED: _ClassVar[TurnStage]
    TURN_STAGE_PREFILL: _ClassVar[TurnStage]

class PlacementPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLACEMENT_POLICY_UNSPECIFIED: _ClassVar[PlacementPolicy]
    PLACEMENT_POLICY_LEAST_LOADED: _ClassVar[PlacementPolicy]
    PLACEMENT_POLICY_ROUND_ROBIN: _ClassVar[PlacementPolicy]

class RoutingPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROUTING_POLICY_UNSPECIFIED: _ClassVar[RoutingPolicy]
    ROUTING_POLICY_LEAST_OUTSTANDING: _ClassVar[RoutingPolicy]
    ROUTING_POLICY_ROUND_ROBIN: _ClassVar[RoutingPolicy]
    ROUTING_POLICY_PREFIX_AWARE: _ClassVar[RoutingPolicy]

class PrefixPull(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PREFIX_PULL_UNSPECIFIED: _ClassVar[PrefixPull]
    PREFIX_PULL_FOLLOWED: _ClassVar[PrefixPull]
    PREFIX_PULL_PASSED_OVER: _ClassVar[PrefixPull]

class KvTransport(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KV_TRANSPORT_UNSPECIFIED: _ClassVar[KvTransport]
    KV_TRANSPORT_SLABS: _ClassVar[KvTransport]
    KV_TRANSPORT_WIRE: _ClassVar[KvTransport]
    KV_TRANSPORT_DEVICE: _ClassVar[KvTransport]
ENGINE_ROLE_UNSPECIFIED: EngineRole
ENGINE_ROLE_SIMPLE: EngineRole
ENGINE_ROLE_PREFILL: EngineRole
ENGINE_ROLE_DECODE: EngineRole
TURN_STAGE_UNSPECIFIED: TurnStage
TURN_STAGE_PREFILL: TurnStage
PLACEMENT_POLICY_UNSPECIFIED: PlacementPolicy
PLACEMENT_POLICY_LEAST_LOADED: PlacementPolicy
PLACEMENT_POLICY_ROUND_ROBIN: PlacementPolicy
ROUTING_POLICY_UNSPECIFIED: RoutingPolicy
ROUTING_POLICY_LEAST_OUTSTANDING: RoutingPolicy
ROUTING_POLICY_ROUND_ROBIN: RoutingPolicy
ROUTING_POLICY_PREFIX_AWARE: RoutingPolicy
PREFIX_PULL_UNSPECIFIED: PrefixPull
PREFIX_PULL_FOLLOWED: PrefixPull
PREFIX_PULL_PASSED_OVER: PrefixPull
KV_TRANSPORT_UNSPECIFIED: KvTransport
KV_TRANSPORT_SLABS: KvTransport
KV_TRANSPORT_WIRE: KvTransport
KV_TRANSPORT_DEVICE: KvTransport

class NodeTopology(_message.Message):
    __slots__ = ("node_id", "num_engines", "num_prefill_engines", "num_decode_engines", "tensor_parallel_size", "cpu_num_slabs", "cpu_slab_bytes", "weight_cache_bytes")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_ENGINES_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFILL_ENGINES_FIELD_NUMBER: _ClassVar[int]
    NUM_DECODE_ENGINES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    CPU_NUM_SLABS_FIELD_NUMBER: _ClassVar[int]
    CPU_SLAB_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    num_engines: int
    num_prefill_engines: int
    num_decode_engines: int
    tensor_parallel_size: int
    cpu_num_slabs: int
    cpu_slab_bytes: int
    weight_cache_bytes: int
    def __init__(self, node_id: _Optional[str] = ..., num_engines: _Optional[int] = ..., num_prefill_engines: _Optional[int] = ..., num_decode_engines: _Optional[int] = ..., tensor_parallel_size: _Optional[int] = ..., cpu_num_slabs: _Optional[int] = ..., cpu_slab_bytes: _Optional[int] = ..., weight_cache_bytes: _Optional[int] = ...) -> None: ...

class ApplyTopologyRequest(_message.Message):
    __slots__ = ("nodes", "placement_policy", "routing_policy", "decode_work_stealing_min_batch_gap")
    NODES_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_POLICY_FIELD_NUMBER: _ClassVar[int]
    ROUTING_POLICY_FIELD_NUMBER: _ClassVar[int]
    DECODE_WORK_STEALING_MIN_BATCH_GAP_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeTopology]
    placement_policy: PlacementPolicy
    routing_policy: RoutingPolicy
    decode_work_stealing_min_batch_gap: int
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeTopology, _Mapping]]] = ..., placement_policy: _Optional[_Union[PlacementPolicy, str]] = ..., routing_policy: _Optional[_Union[RoutingPolicy, str]] = ..., decode_work_stealing_min_batch_gap: _Optional[int] = ...) -> None: ...

class ApplyTopologyResponse(_message.Message):
    __slots__ = ("engines",)
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    engines: _containers.RepeatedCompositeFieldContainer[EngineInfo]
    def __init__(self, engines: _Optional[_Iterable[_Union[EngineInfo, _Mapping]]] = ...) -> None: ...

class DeviceFacts(_message.Message):
    __slots__ = ("kind", "name", "pool_bytes", "chunk_bytes", "memory_bytes_per_s", "host_link_bytes_per_s", "flops_per_s")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    POOL_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    HOST_LINK_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    FLOPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    pool_bytes: int
    chunk_bytes: int
    memory_bytes_per_s: int
    host_link_bytes_per_s: int
    flops_per_s: int
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., pool_bytes: _Optional[int] = ..., chunk_bytes: _Optional[int] = ..., memory_bytes_per_s: _Optional[int] = ..., host_link_bytes_per_s: _Optional[int] = ..., flops_per_s: _Optional[int] = ...) -> None: ...

class NodeMemory(_message.Message):
    __slots__ = ("cpu_num_slabs", "cpu_slab_bytes", "weight_cache_bytes")
    CPU_NUM_SLABS_FIELD_NUMBER: _ClassVar[int]
    CPU_SLAB_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    cpu_num_slabs: int
    cpu_slab_bytes: int
    weight_cache_bytes: int
    def __init__(self, cpu_num_slabs: _Optional[int] = ..., cpu_slab_bytes: _Optional[int] = ..., weight_cache_bytes: _Optional[int] = ...) -> None: ...

class RegisterWorkerRequest(_message.Message):
    __slots__ = ("contract_version", "node_id", "worker_index", "address", "device", "memory", "incarnation", "pid", "max_batch_sequences", "role", "tensor_parallel_size", "capabilities", "kv_sharing")
    CONTRACT_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_INDEX_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    KV_SHARING_FIELD_NUMBER: _ClassVar[int]
    contract_version: int
    node_id: str
    worker_index: int
    address: str
    device: DeviceFacts
    memory: NodeMemory
    incarnation: str
    pid: int
    max_batch_sequences: int
    role: EngineRole
    tensor_parallel_size: int
    capabilities: _containers.RepeatedScalarFieldContainer[_inference_pb2.Capability]
    kv_sharing: KvSharing
    def __init__(self, contract_version: _Optional[int] = ..., node_id: _Optional[str] = ..., worker_index: _Optional[int] = ..., address: _Optional[str] = ..., device: _Optional[_Union[DeviceFacts, _Mapping]] = ..., memory: _Optional[_Union[NodeMemory, _Mapping]] = ..., incarnation: _Optional[str] = ..., pid: _Optional[int] = ..., max_batch_sequences: _Optional[int] = ..., role: _Optional[_Union[EngineRole, str]] = ..., tensor_parallel_size: _Optional[int] = ..., capabilities: _Optional[_Iterable[_Union[_inference_pb2.Capability, str]]] = ..., kv_sharing: _Optional[_Union[KvSharing, _Mapping]] = ...) -> None: ...

class KvSharing(_message.Message):
    __slots__ = ("device", "readable", "obstacle")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    READABLE_FIELD_NUMBER: _ClassVar[int]
    OBSTACLE_FIELD_NUMBER: _ClassVar[int]
    device: str
    readable: _containers.RepeatedScalarFieldContainer[str]
    obstacle: str
    def __init__(self, device: _Optional[str] = ..., readable: _Optional[_Iterable[str]] = ..., obstacle: _Optional[str] = ...) -> None: ...

class RegisterWorkerResponse(_message.Message):
    __slots__ = ("epoch", "lease_ttl_ns", "contract_version", "capabilities")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_NS_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    lease_ttl_ns: int
    contract_version: int
    capabilities: _containers.RepeatedScalarFieldContainer[_inference_pb2.Capability]
    def __init__(self, epoch: _Optional[int] = ..., lease_ttl_ns: _Optional[int] = ..., contract_version: _Optional[int] = ..., capabilities: _Optional[_Iterable[_Union[_inference_pb2.Capability, str]]] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class RenewLeaseResponse(_message.Message):
    __slots__ = ("lease_ttl_ns",)
    LEASE_TTL_NS_FIELD_NUMBER: _ClassVar[int]
    lease_ttl_ns: int
    def __init__(self, lease_ttl_ns: _Optional[int] = ...) -> None: ...

class DeregisterWorkerRequest(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class DeregisterWorkerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("node_id", "worker_index", "resume")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_INDEX_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    worker_index: int
    resume: bool
    def __init__(self, node_id: _Optional[str] = ..., worker_index: _Optional[int] = ..., resume: _Optional[bool] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("remaining_sequences", "unserved_models", "drained")
    REMAINING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    UNSERVED_MODELS_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    remaining_sequences: int
    unserved_models: _containers.RepeatedScalarFieldContainer[str]
    drained: bool
    def __init__(self, remaining_sequences: _Optional[int] = ..., unserved_models: _Optional[_Iterable[str]] = ..., drained: _Optional[bool] = ...) -> None: ...

class GetRuntimeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRuntimeResponse(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: RuntimeSnapshot
    def __init__(self, snapshot: _Optional[_Union[RuntimeSnapshot, _Mapping]] = ...) -> None: ...

class RuntimeSnapshot(_message.Message):
    __slots__ = ("taken_unix_ns", "started_unix_ns", "workers", "engines", "models", "active_requests", "waiting_requests", "statistics", "kv_links", "prefix_index_blocks", "routing_policy")
    TAKEN_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    KV_LINKS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_INDEX_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ROUTING_POLICY_FIELD_NUMBER: _ClassVar[int]
    taken_unix_ns: int
    started_unix_ns: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    engines: _containers.RepeatedCompositeFieldContainer[EngineInfo]
    models: _containers.RepeatedCompositeFieldContainer[_model_pb2.ModelInfo]
    active_requests: int
    waiting_requests: int
    statistics: Statistics
    kv_links: _containers.RepeatedCompositeFieldContainer[KvLink]
    prefix_index_blocks: int
    routing_policy: RoutingPolicy
    def __init__(self, taken_unix_ns: _Optional[int] = ..., started_unix_ns: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., engines: _Optional[_Iterable[_Union[EngineInfo, _Mapping]]] = ..., models: _Optional[_Iterable[_Union[_model_pb2.ModelInfo, _Mapping]]] = ..., active_requests: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., statistics: _Optional[_Union[Statistics, _Mapping]] = ..., kv_links: _Optional[_Iterable[_Union[KvLink, _Mapping]]] = ..., prefix_index_blocks: _Optional[int] = ..., routing_policy: _Optional[_Union[RoutingPolicy, str]] = ...) -> None: ...

class KvLink(_message.Message):
    __slots__ = ("source_node_id", "target_node_id", "transport", "transfers", "interruptions", "bytes", "time_ns", "bytes_per_s", "device_obstacle")
    SOURCE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    INTERRUPTIONS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    DEVICE_OBSTACLE_FIELD_NUMBER: _ClassVar[int]
    source_node_id: str
    target_node_id: str
    transport: KvTransport
    transfers: int
    interruptions: int
    bytes: int
    time_ns: int
    bytes_per_s: int
    device_obstacle: str
    def __init__(self, source_node_id: _Optional[str] = ..., target_node_id: _Optional[str] = ..., transport: _Optional[_Union[KvTransport, str]] = ..., transfers: _Optional[int] = ..., interruptions: _Optional[int] = ..., bytes: _Optional[int] = ..., time_ns: _Optional[int] = ..., bytes_per_s: _Optional[int] = ..., device_obstacle: _Optional[str] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("node_id", "worker_index", "epoch", "address", "device", "memory", "pid", "connected", "usage", "draining", "contract_version", "rank", "capabilities", "kv_sharing")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_VERSION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    KV_SHARING_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    worker_index: int
    epoch: int
    address: str
    device: DeviceFacts
    memory: NodeMemory
    pid: int
    connected: bool
    usage: WorkerMemory
    draining: bool
    contract_version: int
    rank: int
    capabilities: _containers.RepeatedScalarFieldContainer[_inference_pb2.Capability]
    kv_sharing: KvSharing
    def __init__(self, node_id: _Optional[str] = ..., worker_index: _Optional[int] = ..., epoch: _Optional[int] = ..., address: _Optional[str] = ..., device: _Optional[_Union[DeviceFacts, _Mapping]] = ..., memory: _Optional[_Union[NodeMemory, _Mapping]] = ..., pid: _Optional[int] = ..., connected: _Optional[bool] = ..., usage: _Optional[_Union[WorkerMemory, _Mapping]] = ..., draining: _Optional[bool] = ..., contract_version: _Optional[int] = ..., rank: _Optional[int] = ..., capabilities: _Optional[_Iterable[_Union[_inference_pb2.Capability, str]]] = ..., kv_sharing: _Optional[_Union[KvSharing, _Mapping]] = ...) -> None: ...

class WorkerMemory(_message.Message):
    __slots__ = ("device_weight_bytes", "device_kv_bytes", "device_free_bytes", "host_kv_bytes", "weight_cache_bytes", "sequences", "prefix_device_bytes", "prefix_host_bytes", "prefix_queried_tokens", "prefix_reused_tokens", "device_graph_bytes")
    DEVICE_WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_DEVICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_QUERIED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_REUSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_GRAPH_BYTES_FIELD_NUMBER: _ClassVar[int]
    device_weight_bytes: int
    device_kv_bytes: int
    device_free_bytes: int
    host_kv_bytes: int
    weight_cache_bytes: int
    sequences: int
    prefix_device_bytes: int
    prefix_host_bytes: int
    prefix_queried_tokens: int
    prefix_reused_tokens: int
    device_graph_bytes: int
    def __init__(self, device_weight_bytes: _Optional[int] = ..., device_kv_bytes: _Optional[int] = ..., device_free_bytes: _Optional[int] = ..., host_kv_bytes: _Optional[int] = ..., weight_cache_bytes: _Optional[int] = ..., sequences: _Optional[int] = ..., prefix_device_bytes: _Optional[int] = ..., prefix_host_bytes: _Optional[int] = ..., prefix_queried_tokens: _Optional[int] = ..., prefix_reused_tokens: _Optional[int] = ..., device_graph_bytes: _Optional[int] = ...) -> None: ...

class EngineInfo(_message.Message):
    __slots__ = ("engine_id", "node_id", "role", "worker_indexes", "ready", "current_model", "sequences", "turns", "switches", "tokens", "held_sequences", "estimates", "missing_worker_indexes", "prefix_followed")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    WORKER_INDEXES_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    CURRENT_MODEL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    HELD_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    ESTIMATES_FIELD_NUMBER: _ClassVar[int]
    MISSING_WORKER_INDEXES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FOLLOWED_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    node_id: str
    role: EngineRole
    worker_indexes: _containers.RepeatedScalarFieldContainer[int]
    ready: bool
    current_model: str
    sequences: int
    turns: int
    switches: int
    tokens: int
    held_sequences: int
    estimates: _containers.RepeatedCompositeFieldContainer[ModelEstimate]
    missing_worker_indexes: _containers.RepeatedScalarFieldContainer[int]
    prefix_followed: int
    def __init__(self, engine_id: _Optional[str] = ..., node_id: _Optional[str] = ..., role: _Optional[_Union[EngineRole, str]] = ..., worker_indexes: _Optional[_Iterable[int]] = ..., ready: _Optional[bool] = ..., current_model: _Optional[str] = ..., sequences: _Optional[int] = ..., turns: _Optional[int] = ..., switches: _Optional[int] = ..., tokens: _Optional[int] = ..., held_sequences: _Optional[int] = ..., estimates: _Optional[_Iterable[_Union[ModelEstimate, _Mapping]]] = ..., missing_worker_indexes: _Optional[_Iterable[int]] = ..., prefix_followed: _Optional[int] = ...) -> None: ...

class ModelEstimate(_message.Message):
    __slots__ = ("model", "step_time_ns", "sequences", "switch_time_ns", "measured_step_time_ns", "expected_step_time_ns", "step_error", "measurements")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    SWITCH_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_STEP_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_STEP_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    STEP_ERROR_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    step_time_ns: int
    sequences: int
    switch_time_ns: int
    measured_step_time_ns: int
    expected_step_time_ns: int
    step_error: float
    measurements: int
    def __init__(self, model: _Optional[str] = ..., step_time_ns: _Optional[int] = ..., sequences: _Optional[int] = ..., switch_time_ns: _Optional[int] = ..., measured_step_time_ns: _Optional[int] = ..., expected_step_time_ns: _Optional[int] = ..., step_error: _Optional[float] = ..., measurements: _Optional[int] = ...) -> None: ...

class Statistics(_message.Message):
    __slots__ = ("since_unix_ns", "requests", "finished", "cancelled", "failed", "rejected", "tokens", "recovered", "routed_by_node", "placed_by_node", "evicted_by_node", "handed_off", "recomputed", "stolen_batches", "stolen_sequences", "hand_off_time_ns", "import_time_ns", "imported_bytes", "fetched", "fetch_time_ns", "fetched_bytes", "fetch_interruptions", "prompt_tokens", "cached_tokens", "expected_cached_tokens", "prefix_followed", "prefix_passed_over")
    class RoutedByNodeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class PlacedByNodeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class EvictedByNodeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_FIELD_NUMBER: _ClassVar[int]
    ROUTED_BY_NODE_FIELD_NUMBER: _ClassVar[int]
    PLACED_BY_NODE_FIELD_NUMBER: _ClassVar[int]
    EVICTED_BY_NODE_FIELD_NUMBER: _ClassVar[int]
    HANDED_OFF_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    STOLEN_BATCHES_FIELD_NUMBER: _ClassVar[int]
    STOLEN_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    HAND_OFF_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    IMPORT_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    IMPORTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    FETCH_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FETCH_INTERRUPTIONS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FOLLOWED_FIELD_NUMBER: _ClassVar[int]
    PREFIX_PASSED_OVER_FIELD_NUMBER: _ClassVar[int]
    since_unix_ns: int
    requests: int
    finished: int
    cancelled: int
    failed: int
    rejected: int
    tokens: int
    recovered: int
    routed_by_node: _containers.ScalarMap[str, int]
    placed_by_node: _containers.ScalarMap[str, int]
    evicted_by_node: _containers.ScalarMap[str, int]
    handed_off: int
    recomputed: int
    stolen_batches: int
    stolen_sequences: int
    hand_off_time_ns: int
    import_time_ns: int
    imported_bytes: int
    fetched: int
    fetch_time_ns: int
    fetched_bytes: int
    fetch_interruptions: int
    prompt_tokens: int
    cached_tokens: int
    expected_cached_tokens: int
    prefix_followed: int
    prefix_passed_over: int
    def __init__(self, since_unix_ns: _Optional[int] = ..., requests: _Optional[int] = ..., finished: _Optional[int] = ..., cancelled: _Optional[int] = ..., failed: _Optional[int] = ..., rejected: _Optional[int] = ..., tokens: _Optional[int] = ..., recovered: _Optional[int] = ..., routed_by_node: _Optional[_Mapping[str, int]] = ..., placed_by_node: _Optional[_Mapping[str, int]] = ..., evicted_by_node: _Optional[_Mapping[str, int]] = ..., handed_off: _Optional[int] = ..., recomputed: _Optional[int] = ..., stolen_batches: _Optional[int] = ..., stolen_sequences: _Optional[int] = ..., hand_off_time_ns: _Optional[int] = ..., import_time_ns: _Optional[int] = ..., imported_bytes: _Optional[int] = ..., fetched: _Optional[int] = ..., fetch_time_ns: _Optional[int] = ..., fetched_bytes: _Optional[int] = ..., fetch_interruptions: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., expected_cached_tokens: _Optional[int] = ..., prefix_followed: _Optional[int] = ..., prefix_passed_over: _Optional[int] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchEventsResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: ClusterEvent
    def __init__(self, event: _Optional[_Union[ClusterEvent, _Mapping]] = ...) -> None: ...

class ClusterEvent(_message.Message):
    __slots__ = ("number", "unix_ns", "worker", "replica", "turn", "request", "kv")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    number: int
    unix_ns: int
    worker: WorkerChanged
    replica: ReplicaChanged
    turn: TurnChanged
    request: RequestChanged
    kv: KvMoved
    def __init__(self, number: _Optional[int] = ..., unix_ns: _Optional[int] = ..., worker: _Optional[_Union[WorkerChanged, _Mapping]] = ..., replica: _Optional[_Union[ReplicaChanged, _Mapping]] = ..., turn: _Optional[_Union[TurnChanged, _Mapping]] = ..., request: _Optional[_Union[RequestChanged, _Mapping]] = ..., kv: _Optional[_Union[KvMoved, _Mapping]] = ...) -> None: ...

class WorkerChanged(_message.Message):
    __slots__ = ("node_id", "worker_index", "epoch", "change", "reason")
    class Change(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CHANGE_UNSPECIFIED: _ClassVar[WorkerChanged.Change]
        CHANGE_REGISTERED: _ClassVar[WorkerChanged.Change]
        CHANGE_CONNECTED: _ClassVar[WorkerChanged.Change]
        CHANGE_LOST: _ClassVar[WorkerChanged.Change]
        CHANGE_DRAINING: _ClassVar[WorkerChanged.Change]
    CHANGE_UNSPECIFIED: WorkerChanged.Change
    CHANGE_REGISTERED: WorkerChanged.Change
    CHANGE_CONNECTED: WorkerChanged.Change
    CHANGE_LOST: WorkerChanged.Change
    CHANGE_DRAINING: WorkerChanged.Change
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    worker_index: int
    epoch: int
    change: WorkerChanged.Change
    reason: str
    def __init__(self, node_id: _Optional[str] = ..., worker_index: _Optional[int] = ..., epoch: _Optional[int] = ..., change: _Optional[_Union[WorkerChanged.Change, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class ReplicaChanged(_message.Message):
    __slots__ = ("model", "replica")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    model: str
    replica: _model_pb2.Replica
    def __init__(self, model: _Optional[str] = ..., replica: _Optional[_Union[_model_pb2.Replica, _Mapping]] = ...) -> None: ...

class TurnChanged(_message.Message):
    __slots__ = ("engine_id", "turn_id", "model", "change", "sequences", "quota_ns", "switch_time_ns", "elapsed_ns", "reason", "stage", "expected_switch_time_ns", "expected_step_time_ns", "steps")
    class Change(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CHANGE_UNSPECIFIED: _ClassVar[TurnChanged.Change]
        CHANGE_QUEUED: _ClassVar[TurnChanged.Change]
        CHANGE_STARTED: _ClassVar[TurnChanged.Change]
        CHANGE_ENDED: _ClassVar[TurnChanged.Change]
    CHANGE_UNSPECIFIED: TurnChanged.Change
    CHANGE_QUEUED: TurnChanged.Change
    CHANGE_STARTED: TurnChanged.Change
    CHANGE_ENDED: TurnChanged.Change
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    QUOTA_NS_FIELD_NUMBER: _ClassVar[int]
    SWITCH_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_NS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SWITCH_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_STEP_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    turn_id: int
    model: str
    change: TurnChanged.Change
    sequences: int
    quota_ns: int
    switch_time_ns: int
    elapsed_ns: int
    reason: str
    stage: TurnStage
    expected_switch_time_ns: int
    expected_step_time_ns: int
    steps: int
    def __init__(self, engine_id: _Optional[str] = ..., turn_id: _Optional[int] = ..., model: _Optional[str] = ..., change: _Optional[_Union[TurnChanged.Change, str]] = ..., sequences: _Optional[int] = ..., quota_ns: _Optional[int] = ..., switch_time_ns: _Optional[int] = ..., elapsed_ns: _Optional[int] = ..., reason: _Optional[str] = ..., stage: _Optional[_Union[TurnStage, str]] = ..., expected_switch_time_ns: _Optional[int] = ..., expected_step_time_ns: _Optional[int] = ..., steps: _Optional[int] = ...) -> None: ...

class RequestChanged(_message.Message):
    __slots__ = ("sequence_id", "label", "model", "engine_id", "change", "tokens", "error", "reason", "prefix_pull", "expected_cached_tokens", "cached_tokens")
    class Change(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CHANGE_UNSPECIFIED: _ClassVar[RequestChanged.Change]
        CHANGE_ACCEPTED: _ClassVar[RequestChanged.Change]
        CHANGE_FINISHED: _ClassVar[RequestChanged.Change]
        CHANGE_CANCELLED: _ClassVar[RequestChanged.Change]
        CHANGE_FAILED: _ClassVar[RequestChanged.Change]
        CHANGE_RECOVERED: _ClassVar[RequestChanged.Change]
        CHANGE_HANDED_OFF: _ClassVar[RequestChanged.Change]
        CHANGE_STOLEN: _ClassVar[RequestChanged.Change]
    CHANGE_UNSPECIFIED: RequestChanged.Change
    CHANGE_ACCEPTED: RequestChanged.Change
    CHANGE_FINISHED: RequestChanged.Change
    CHANGE_CANCELLED: RequestChanged.Change
    CHANGE_FAILED: RequestChanged.Change
    CHANGE_RECOVERED: RequestChanged.Change
    CHANGE_HANDED_OFF: RequestChanged.Change
    CHANGE_STOLEN: RequestChanged.Change
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PREFIX_PULL_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    label: str
    model: str
    engine_id: str
    change: RequestChanged.Change
    tokens: int
    error: _errors_pb2.ErrorDetail
    reason: str
    prefix_pull: PrefixPull
    expected_cached_tokens: int
    cached_tokens: int
    def __init__(self, sequence_id: _Optional[int] = ..., label: _Optional[str] = ..., model: _Optional[str] = ..., engine_id: _Optional[str] = ..., change: _Optional[_Union[RequestChanged.Change, str]] = ..., tokens: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.ErrorDetail, _Mapping]] = ..., reason: _Optional[str] = ..., prefix_pull: _Optional[_Union[PrefixPull, str]] = ..., expected_cached_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class KvMoved(_message.Message):
    __slots__ = ("sequence_id", "model", "source_node_id", "engine_id", "transport", "tokens", "bytes", "time_ns", "interruptions")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    INTERRUPTIONS_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    model: str
    source_node_id: str
    engine_id: str
    transport: KvTransport
    tokens: int
    bytes: int
    time_ns: int
    interruptions: int
    def __init__(self, sequence_id: _Optional[int] = ..., model: _Optional[str] = ..., source_node_id: _Optional[str] = ..., engine_id: _Optional[str] = ..., transport: _Optional[_Union[KvTransport, str]] = ..., tokens: _Optional[int] = ..., bytes: _Optional[int] = ..., time_ns: _Optional[int] = ..., interruptions: _Optional[int] = ...) -> None: ...

class ResetStatisticsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetStatisticsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
