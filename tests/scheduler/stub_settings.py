"""What a stub worker is told, and the turns it has."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon.capability import OF_WORKER, Capabilities
from aegaeon.errors import ModelLoadError
from aegaeon.rpc.version import CONTRACT_VERSION
from aegaeon.v1 import cluster_pb2


@dataclass(slots=True, eq=False)
class StubTurn:
    turn_id: int
    model: str
    members: dict[int, None]
    quota_ns: int
    stage: cluster_pb2.TurnStage.ValueType


@dataclass(slots=True)
class StubSettings:
    node_id: str = "n0"
    worker_index: int = 0
    #: As in `EngineRole`, without the prefix.
    role: str = "SIMPLE"
    contract_version: int = CONTRACT_VERSION
    capabilities: Capabilities = OF_WORKER
    step_s: float = 0.002
    max_batch_sequences: int = 64
    pool_bytes: int = 1 << 30
    weight_cache_bytes: int = 1 << 30
    packed_bytes: int = 1 << 20
    #: Models whose files are "broken".
    broken: set[str] = field(default_factory=set)
    load_s: float = 0.0
    inspect_s: float = 0.0


def broken(path: str) -> ModelLoadError:
    """Why a broken model cannot be loaded."""
    return ModelLoadError(f"{path}: model.safetensors is truncated", metadata={"path": path})
