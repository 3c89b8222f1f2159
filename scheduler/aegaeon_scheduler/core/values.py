"""Plain values that events, ledgers and commands share."""

from __future__ import annotations

import enum
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from aegaeon.capability import NO_CAPABILITIES, Capabilities
from aegaeon_scheduler.core.sampling import SamplingParameters

#: Bounds of a request's priority.
MIN_PRIORITY = -8
MAX_PRIORITY = 8
#: Bounds of an objective in ns, where it is not 0.
MIN_SLO_NS = 100_000
MAX_SLO_NS = 86_400_000_000_000


class DataType(enum.IntEnum):
    """Numeric type of weights and KV; numbers equal the contract's."""

    UNSPECIFIED = 0
    FLOAT32 = 1
    BFLOAT16 = 2
    FLOAT16 = 3


class FinishReason(enum.IntEnum):
    """Why a sequence ended; numbers equal the contract's."""

    UNSPECIFIED = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3


class TurnEnd(enum.IntEnum):
    """Why a turn ended; numbers equal the contract's."""

    UNSPECIFIED = 0
    COMPLETED = 1
    QUOTA = 2
    FAILED = 3


class EngineRole(enum.IntEnum):
    """What an engine is for; numbers equal the contract's."""

    SIMPLE = 1
    PREFILL = 2
    DECODE = 3


class TurnStage(enum.IntEnum):
    """How far a turn takes its members; numbers equal the contract's."""

    #: Until they end.
    WHOLE = 0
    #: Until they have one new token; then they are handed off.
    PREFILL = 1


class AdmissionPolicy(enum.StrEnum):
    """What a request is refused for."""

    LIMITS = "limits"
    SLO = "slo"


class PlacementPolicy(enum.IntEnum):
    """Chooses nodes for replicas; numbers equal the contract's."""

    LEAST_LOADED = 1
    ROUND_ROBIN = 2


class RoutingPolicy(enum.IntEnum):
    """Chooses a READY node for a request; numbers equal the contract's."""

    LEAST_OUTSTANDING = 1
    ROUND_ROBIN = 2
    PREFIX_AWARE = 3


@dataclass(frozen=True, slots=True)
class Slo:
    """Objectives of a request in ns: time to its first token, and time per further token."""

    ttft_ns: int
    tpot_ns: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Where a model comes from and how it is served; 0 and UNSPECIFIED as in the contract."""

    name: str
    path: str
    dtype: DataType = DataType.UNSPECIFIED
    max_model_len: int = 0
    trust_remote_code: bool = False
    #: Objectives of its requests, in ns; 0 means the scheduler's.
    ttft_slo_ns: int = 0
    tpot_slo_ns: int = 0
    prefix_caching: bool = True
    #: For gateways; empty means that the chat template tells.
    tool_parser: str = ""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a worker read from a model's files; sizes in bytes."""

    fingerprint: str
    packed_bytes: int
    kv_block_bytes: int
    kv_block_tokens: int
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopConditions:
    """When a sequence stops; fully resolved: every number holds, `eos_token_ids` is final."""

    max_new_tokens: int
    min_new_tokens: int
    eos_token_ids: tuple[int, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    max_model_len: int


@dataclass(frozen=True, slots=True)
class PrefixSharing:
    """With whom a request shares the KV of a common beginning: those of its salt, or nobody."""

    enabled: bool = True
    salt: str = ""


#: With everybody who gives no salt.
COMMON = PrefixSharing()


@dataclass(frozen=True, slots=True)
class RequestedStop:
    """Stop conditions as a caller sends them: empty eos ids and a 0 context mean the model's, and
    no new tokens as many as there is room for."""

    max_new_tokens: int
    min_new_tokens: int = 0
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_model_len: int = 0


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request as it arrives, not yet checked. Tokens may be any sequence; they are not copied."""

    model: str
    label: str
    prompt: Tokens[int]
    generated: Tokens[int]
    stop: RequestedStop
    timeout_ns: int = 0
    #: Between `MIN_PRIORITY` and `MAX_PRIORITY`.
    priority: int = 0
    #: Objectives in ns; 0 means the model's.
    ttft_slo_ns: int = 0
    tpot_slo_ns: int = 0
    #: The reader's own number for it; means nothing to the core.
    stream_id: int = 0
    #: None takes the most probable token.
    sampling: SamplingParameters | None = None
    prefix: PrefixSharing = COMMON
    #: Of its caller's span; means nothing to the core.
    trace_parent: str = ""
    #: As in the contract; None tells nothing of the prompt.
    prompt_logprobs: int | None = None
    told_prompt_tokens: int = 0
    #: What whoever computes it must know.
    needs: Capabilities = NO_CAPABILITIES


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A worker's device; sizes in bytes. Speeds are what it measured at its start, or 0."""

    kind: str
    name: str
    pool_bytes: int
    chunk_bytes: int
    memory_bytes_per_s: int = 0
    host_link_bytes_per_s: int = 0
    flops_per_s: int = 0


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Host memory that the workers of a node share; sizes in bytes."""

    cpu_num_slabs: int
    cpu_slab_bytes: int
    weight_cache_bytes: int


@dataclass(frozen=True, slots=True)
class BlockRun:
    """KV blocks next to each other in a host slab; see the contract."""

    slab: int
    slab_generation: int
    first_block: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class KvPlace:
    """Where the KV of a sequence's first tokens is in a node's slabs; 0 tokens is nowhere."""

    num_tokens: int
    block_bytes: int = 0
    runs: tuple[BlockRun, ...] = ()
    #: A worker of that node; empty for workers of the same node, who need not ask.
    address: str = ""
    #: Ranks of the engine that computed it, as far as they have different KV heads.
    pieces: int = 1
    #: Names what its worker has written down about it; it may be on that worker's device then.
    offer: str = ""
    #: Blocks of an offer, which has no runs.
    num_offered: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks."""
        return (self.num_offered or sum(run.num_blocks for run in self.runs)) * self.block_bytes


@dataclass(frozen=True, slots=True)
class KvSharing:
    """How far a worker takes part in hand-offs from device to device; see the contract."""

    device: str = ""
    readable: frozenset[str] = frozenset()
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """A worker as it registered."""

    node_id: str
    worker_index: int
    address: str
    device: DeviceFacts
    memory: NodeMemory
    max_batch_sequences: int
    incarnation: str = ""
    pid: int = 0
    role: EngineRole = EngineRole.SIMPLE
    contract_version: int = 0
    #: Workers that are its engine together.
    tensor_parallel_size: int = 1
    #: What it understands beyond what every release does.
    capabilities: Capabilities = NO_CAPABILITIES
    kv_sharing: KvSharing = KvSharing()

    @property
    def rank(self) -> int:
        """Its place in its engine; rank 0 drives the others."""
        return self.worker_index % self.tensor_parallel_size

    @property
    def engine_indexes(self) -> range:
        """Indexes of its engine's workers, by rank."""
        first = self.worker_index - self.rank
        return range(first, first + self.tensor_parallel_size)

    @property
    def engine_id(self) -> str:
        """Name of its engine: the node and the index of rank 0."""
        return f"{self.node_id}/{self.engine_indexes[0]}"


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """Memory in use on a worker, from its own ledgers, in bytes."""

    device_weight_bytes: int
    device_kv_bytes: int
    device_free_bytes: int
    host_kv_bytes: int
    weight_cache_bytes: int
    sequences: int
    #: Kept for requests with a common beginning, and counted as free where that needs no more.
    prefix_device_bytes: int = 0
    prefix_host_bytes: int = 0
    #: Tokens looked up there since the worker started, and those found.
    prefix_queried_tokens: int = 0
    prefix_reused_tokens: int = 0
    #: What recorded decode steps hold beside the pool.
    device_graph_bytes: int = 0
