"""POST /v1/models/deploy."""

from __future__ import annotations

import asyncio
from typing import Any

from aegaeon.errors import (
    ConfigError,
    InvalidRequestError,
    NotFoundError,
    PreconditionError,
    ResourceExhaustedError,
)
from aegaeon.http.errors import TABLE, ApiError
from aegaeon.http.gateway import Gateway
from aegaeon.http.schemas import DeployBody
from aegaeon.model_spec import DTypeName, ModelSpec
from aegaeon.v1 import model_pb2

_DTYPES: dict[int, DTypeName] = {
    model_pb2.DATA_TYPE_FLOAT32: "float32",
    model_pb2.DATA_TYPE_BFLOAT16: "bfloat16",
    model_pb2.DATA_TYPE_FLOAT16: "float16",
}


async def deploy(gateway: Gateway, body: DeployBody) -> dict[str, Any]:
    """Deploy; the outcome per node. With nothing ready at the end, an error of status 507."""
    spec = await _spec(gateway, body)
    try:
        # Looks for its folder, possibly in the Hugging Face cache, before anything is asked.
        await asyncio.to_thread(spec.path)
        outcome = await gateway.connection.deploy(
            spec, replica_count=body.replica_count or 0, node_ids=body.node_ids or ()
        )
    except (PreconditionError, ResourceExhaustedError) as error:
        code = TABLE[error.reason][2] if error.reason in TABLE else "precondition_failed"
        raise ApiError(error.message, code=code, status=507, kind="server_error") from error
    except ConfigError as error:
        raise InvalidRequestError(error.message, metadata=error.metadata) from error
    gateway.models.forget(body.model)
    return {
        "model": body.model,
        "ready": list(outcome.ready),
        "failed": {node: error.message for node, error in outcome.failed.items()},
        "evicted": [{"node_id": one.node_id, "model": one.model} for one in outcome.evicted],
    }


async def _spec(gateway: Gateway, body: DeployBody) -> ModelSpec:
    """The spec of a model that is deployed already; what the body says goes first."""
    try:
        known = (await gateway.connection.get_model(body.model)).spec
    except NotFoundError:
        known = model_pb2.ModelSpec()
    return ModelSpec(
        name=body.model,
        model_path=body.path or known.path or None,
        dtype=body.dtype or _DTYPES.get(known.dtype, "auto"),
        max_model_len=body.max_model_len or known.max_model_len or None,
        trust_remote_code=known.trust_remote_code,
        ttft_slo_s=body.ttft_slo_s or known.ttft_slo_ns / 1e9 or None,
        tpot_slo_s=body.tpot_slo_s or known.tpot_slo_ns / 1e9 or None,
    )
