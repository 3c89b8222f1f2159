"""A scheduler without engines: counts upwards instead of generating."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import grpc

from aegaeon.rpc.channel import server_options
from aegaeon.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)

MODEL = "stub/counter"
STEP_S = 0.002


class StubScheduler(
    inference_pb2_grpc.InferenceServiceServicer,
    model_pb2_grpc.ModelServiceServicer,
    cluster_pb2_grpc.ClusterServiceServicer,
):
    """Answers what the Node.js example calls; ``requests`` keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[inference_pb2.GenerateRequest] = []
        self.active = 0
        self.cancelled = 0

    async def Generate(  # noqa: N802  the contract's name
        self,
        request: inference_pb2.GenerateRequest,
        context: grpc.aio.ServicerContext[
            inference_pb2.GenerateRequest, inference_pb2.GenerateResponse
        ],
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        self.requests.append(request)
        self.active += 1
        try:
            for token in itertools.islice(itertools.count(100), request.stop.max_new_tokens):
                await asyncio.sleep(STEP_S)
                yield inference_pb2.GenerateResponse(token_ids=[token])
            yield inference_pb2.GenerateResponse(finish_reason=inference_pb2.FINISH_REASON_LENGTH)
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise
        finally:
            self.active -= 1

    async def ListModels(  # noqa: N802
        self,
        request: model_pb2.ListModelsRequest,
        context: grpc.aio.ServicerContext[
            model_pb2.ListModelsRequest, model_pb2.ListModelsResponse
        ],
    ) -> model_pb2.ListModelsResponse:
        ready = model_pb2.Replica(node_id="node_0", state=model_pb2.REPLICA_STATE_READY)
        loading = model_pb2.Replica(node_id="node_0", state=model_pb2.REPLICA_STATE_LOADING)
        return model_pb2.ListModelsResponse(
            models=[
                model_pb2.ModelInfo(spec=model_pb2.ModelSpec(name="a/b"), replicas=[loading]),
                model_pb2.ModelInfo(spec=model_pb2.ModelSpec(name=MODEL), replicas=[ready]),
            ]
        )

    async def GetRuntime(  # noqa: N802
        self,
        request: cluster_pb2.GetRuntimeRequest,
        context: grpc.aio.ServicerContext[
            cluster_pb2.GetRuntimeRequest, cluster_pb2.GetRuntimeResponse
        ],
    ) -> cluster_pb2.GetRuntimeResponse:
        statistics = cluster_pb2.Statistics(requests=len(self.requests), cancelled=self.cancelled)
        snapshot = cluster_pb2.RuntimeSnapshot(active_requests=self.active, statistics=statistics)
        return cluster_pb2.GetRuntimeResponse(snapshot=snapshot)


async def start(stub: StubScheduler, address: str) -> grpc.aio.Server:
    """Serve the stub at ``address``."""
    server = grpc.aio.server(options=server_options())
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(stub, server)
    model_pb2_grpc.add_ModelServiceServicer_to_server(stub, server)
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(stub, server)
    server.add_insecure_port(address)
    await server.start()
    return server
