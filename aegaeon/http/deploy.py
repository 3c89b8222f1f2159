"""POST /v1/models/deploy."""

from __future__ import annotations

import asyncio
from typing import Any

from aegaeon.client.known_spec import SpecChanges, completed_spec
from aegaeon.errors import (
    ConfigError,
    InvalidRequestError,
    PreconditionError,
    ResourceExhaustedError,
)
from aegaeon.http.errors import TABLE, ApiError
from aegaeon.http.gateway import Gateway
from aegaeon.http.schemas import DeployBody


async def deploy(gateway: Gateway, body: DeployBody) -> dict[str, Any]:
    """Deploy; the outcome per node. With nothing ready at the end, an error of status 507."""
    changes = SpecChanges(
        body.path,
        body.max_model_len,
        body.dtype,
        body.ttft_slo_s,
        body.tpot_slo_s,
        body.prefix_caching,
        body.tool_parser,
    )
    spec = await completed_spec(gateway.connection, body.model, changes)
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
