"""Health, models, and what operators see of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import grpc
from fastapi import APIRouter, Depends
from starlette.responses import JSONResponse, Response

from aegaeon.errors import AegaeonError
from aegaeon.http.deploy import deploy
from aegaeon.http.gateway import Gateway
from aegaeon.http.openapi import body_of
from aegaeon.http.plain import plain
from aegaeon.http.schemas import DeployBody, UndeployBody, read
from aegaeon.http.streaming import EventStream, event
from aegaeon.rpc.status import from_rpc_error
from aegaeon.security.guard import current_caller
from aegaeon.v1 import cluster_pb2, cluster_pb2_grpc, model_pb2

_READY_TIMEOUT_S = 2.0


def cluster_routes(gateway: Gateway) -> APIRouter:
    """Everything that generates nothing."""
    router = APIRouter(tags=["cluster"])

    @router.get("/health")
    async def health() -> Response:
        """The gateway is alive."""
        return JSONResponse({"status": "ok"})

    @router.get("/ready")
    async def ready() -> Response:
        """200 while the scheduler answers and an engine can run; 503 and the reason otherwise."""
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                snapshot = await gateway.connection.runtime()
        except (AegaeonError, TimeoutError) as error:
            reason = str(error) or f"the scheduler has not answered in {_READY_TIMEOUT_S:g} s"
            return JSONResponse({"ready": False, "reason": reason}, 503)
        engines = sum(engine.ready for engine in snapshot.engines)
        models = [info.spec.name for info in snapshot.models if _is_ready(info)]
        answer = {"ready": engines > 0, "engines": engines, "models": models}
        if not engines:
            answer["reason"] = "no engine is connected to the scheduler"
        return JSONResponse(answer, 200 if engines else 503)

    @router.get("/v1/models")
    async def models() -> Response:
        """Models that have a replica in any state, and that the caller may use."""
        permits = current_caller.get().permits_model
        infos = [i for i in await gateway.connection.list_models() if permits(i.spec.name)]
        return JSONResponse({"object": "list", "data": [_model(info) for info in infos]})

    @router.post("/v1/models/deploy", openapi_extra=body_of(DeployBody))
    async def deploy_model(
        body: Annotated[DeployBody, Depends(read(DeployBody))],
    ) -> Response:
        """Make a model ready; the answer names ready, failed and evicted, per node."""
        return JSONResponse(await deploy(gateway, body))

    @router.post("/v1/models/undeploy", openapi_extra=body_of(UndeployBody))
    async def undeploy_model(
        body: Annotated[UndeployBody, Depends(read(UndeployBody))],
    ) -> Response:
        """Drain and remove a model; answered when it is gone."""
        outcome = await gateway.connection.undeploy(body.model, body.node_ids or ())
        gateway.models.forget(body.model)
        failed = {node: str(error) for node, error in outcome.failed.items()}
        return JSONResponse(
            {"model": body.model, "removed": list(outcome.removed), "failed": failed}
        )

    # Below the two above, which it would take for names; names may have slashes.
    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        """One of them."""
        current_caller.get().check_model(name)
        return JSONResponse(_model(await gateway.connection.get_model(name)))

    @router.get("/v1/aegaeon/runtime")
    async def runtime() -> Response:
        """The scheduler's snapshot: workers, engines, models, counters."""
        return JSONResponse(plain(await gateway.connection.runtime()))

    @router.get("/v1/aegaeon/events")
    async def events() -> Response:
        """The scheduler's events from now on, as server-sent events."""
        stub = cluster_pb2_grpc.ClusterServiceStub(gateway.connection.channel)
        call = stub.WatchEvents(cluster_pb2.WatchEventsRequest())
        await _opened(call)
        return EventStream(_events(call, gateway.stopping), gateway.heartbeat_s, call.cancel)

    return router


async def _opened(call: Any) -> None:
    """Wait for the scheduler's headers, from which on nothing is missed. Raises AegaeonError."""
    try:
        await call.initial_metadata()
        if call.done():
            async for _ in call:  # raises why
                pass
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    except BaseException:
        call.cancel()
        raise


async def _events(call: Any, stopping: asyncio.Event) -> AsyncIterator[bytes]:
    yield b": watching\n\n"
    end = asyncio.create_task(stopping.wait())
    end.add_done_callback(lambda _: call.cancel())
    try:
        async for response in call:
            kind = response.event.WhichOneof("event")
            yield event(plain(response.event), name=kind, number=response.event.number)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    except asyncio.CancelledError:
        if not stopping.is_set():
            raise
    finally:
        end.cancel()


def _is_ready(info: model_pb2.ModelInfo) -> bool:
    return any(replica.state == model_pb2.REPLICA_STATE_READY for replica in info.replicas)


def _model(info: model_pb2.ModelInfo) -> dict[str, Any]:
    """OpenAI's model object, and more."""
    return {
        "id": info.spec.name,
        "object": "model",
        "created": 0,
        "owned_by": "aegaeon",
        "max_model_len": info.facts.max_model_len or None,
        "vocab_size": info.facts.vocab_size or None,
        "tool_parser": info.spec.tool_parser or None,
        "ready": _is_ready(info),
        "replicas": [plain(replica) for replica in info.replicas],
    }
