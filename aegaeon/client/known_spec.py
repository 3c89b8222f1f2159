"""Deploying a model again without saying everything about it again."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon.client.connection import Connection
from aegaeon.errors import NotFoundError
from aegaeon.model_spec import DTypeName, ModelSpec
from aegaeon.v1 import model_pb2

_DTYPES: dict[int, DTypeName] = {
    model_pb2.DATA_TYPE_FLOAT32: "float32",
    model_pb2.DATA_TYPE_BFLOAT16: "bfloat16",
    model_pb2.DATA_TYPE_FLOAT16: "float16",
}


@dataclass(frozen=True)
class SpecChanges:
    """What a caller says about a model; what is None stays as it is deployed."""

    path: str | None = None
    max_model_len: int | None = None
    dtype: DTypeName | None = None
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None
    prefix_caching: bool | None = None
    tool_parser: str | None = None


async def completed_spec(connection: Connection, name: str, changes: SpecChanges) -> ModelSpec:
    """The spec of a model that is deployed already, or a new one; ``changes`` go first."""
    try:
        known = (await connection.get_model(name)).spec
    except NotFoundError:
        known = model_pb2.ModelSpec()
    sharing = changes.prefix_caching
    return ModelSpec(
        name=name,
        model_path=changes.path or known.path or None,
        dtype=changes.dtype or _DTYPES.get(known.dtype, "auto"),
        max_model_len=changes.max_model_len or known.max_model_len or None,
        trust_remote_code=known.trust_remote_code,
        ttft_slo_s=changes.ttft_slo_s or known.ttft_slo_ns / 1e9 or None,
        tpot_slo_s=changes.tpot_slo_s or known.tpot_slo_ns / 1e9 or None,
        prefix_caching=not known.no_prefix_caching if sharing is None else sharing,
        tool_parser=changes.tool_parser or known.tool_parser or None,
    )
