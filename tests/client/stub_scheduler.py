"""A scheduler that invents tokens: what clients need of one, with faults on demand.

The token at position p of a request is ``prompt[-1] + 1 + p``. The log-probability of a prompt's
token is the token with a minus, and two of them are told at a time. Run as a program it is started
like the real daemon, and it stands in for a worker too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from aegaeon.capability import OF_SCHEDULER, Capabilities, Capability
from aegaeon.errors import ErrorReason, NotFoundError, PreconditionError
from aegaeon.rpc.channel import server_options
from aegaeon.rpc.daemon import StopSignal, announce_ready, run_daemon
from aegaeon.rpc.needs import contract_names
from aegaeon.rpc.status import abort, to_detail
from aegaeon.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)

SLOW_MODEL = "slow"
SLOW_STEP_S = 0.02


@dataclass
class StubState:
    """What was asked of the stub, and what it shall do; shared by its services."""

    models: set[str] = field(default_factory=lambda: {"echo", SLOW_MODEL})
    submits: list[inference_pb2.SessionSubmit] = field(default_factory=list)
    topologies: list[cluster_pb2.ApplyTopologyRequest] = field(default_factory=list)
    deployed: list[model_pb2.DeployModelRequest] = field(default_factory=list)
    cancelled: int = 0
    #: Aborts the session after so many tokens, those told of prompts included, once per entry.
    break_after: list[int] = field(default_factory=list)
    break_code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    #: What it understands; None is a release of before there were capabilities.
    capabilities: Capabilities | None = OF_SCHEDULER
    #: Submissions of each message.
    groups: list[int] = field(default_factory=list)
    #: Answers so many submissions with "model not found", as a scheduler that has just started.
    not_found: int = 0
    fail_deploy: bool = False


class StubInference(inference_pb2_grpc.InferenceServiceServicer):
    def __init__(self, state: StubState) -> None:
        self._state = state

    async def Session(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        out: asyncio.Queue[inference_pb2.SessionResponse | None] = asyncio.Queue()
        running: dict[int, asyncio.Task[None]] = {}

        async def read() -> None:
            async for message in request_iterator:
                submits = self._submits(message)
                self._state.groups += [len(submits)] * bool(submits)
                for submit in submits:
                    self._state.submits.append(submit)
                    running[submit.stream_id] = asyncio.create_task(self._serve(submit, out))
                if message.HasField("cancel"):
                    running[message.cancel.stream_id].cancel()
            await asyncio.gather(*running.values())
            await out.put(None)

        reader = asyncio.create_task(read())
        limit = self._state.break_after.pop(0) if self._state.break_after else None
        try:
            sent = 0
            while (message := await out.get()) is not None:
                yield message
                sent += len(message.token_ids)
                sent += len(message.prompt_log_probabilities.logprobs)
                if limit is not None and sent >= limit:
                    await context.abort(self._state.break_code, "broken on purpose")
        finally:
            reader.cancel()
            for task in running.values():
                if not task.done():
                    self._state.cancelled += 1
                task.cancel()

    async def GetCapabilities(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self._state.capabilities is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        told = contract_names(self._state.capabilities)
        return inference_pb2.GetCapabilitiesResponse(capabilities=told)

    def _submits(self, message: inference_pb2.SessionRequest) -> list[inference_pb2.SessionSubmit]:
        if message.HasField("submit"):
            return [message.submit]
        grouped = Capability.GROUPED_SUBMISSIONS in (self._state.capabilities or ())
        return list(message.submits.submits) if grouped else []

    async def _serve(self, submit: inference_pb2.SessionSubmit, out: asyncio.Queue[Any]) -> None:
        try:
            await self._generate(submit, out)
        except asyncio.CancelledError:
            end = _finished(submit.stream_id, inference_pb2.FINISH_REASON_CANCELLED)
            await out.put(inference_pb2.SessionResponse(deltas=[end]))

    async def _generate(self, submit: inference_pb2.SessionSubmit, out: asyncio.Queue[Any]) -> None:
        request = submit.request
        if request.model not in self._state.models or self._state.not_found > 0:
            self._state.not_found -= 1
            error = NotFoundError(f"no model {request.model!r}", metadata={"model": request.model})
            end = inference_pb2.SessionDelta(stream_id=submit.stream_id, error=to_detail(error))
            await out.put(inference_pb2.SessionResponse(deltas=[end]))
            return
        if request.HasField("prompt_logprobs"):
            for start in range(
                max(1, request.told_prompt_tokens), len(request.prompt_token_ids), 2
            ):
                await out.put(_told(submit, start))
        for position in range(len(request.generated_token_ids), request.stop.max_new_tokens):
            if request.model == SLOW_MODEL:
                await asyncio.sleep(SLOW_STEP_S)
            token = request.prompt_token_ids[-1] + 1 + position
            message = inference_pb2.SessionResponse(
                stream_ids=[submit.stream_id],
                token_ids=[token],
                step_token_counts=[1],
                step_times_ns=[1000 + position],
                received_unix_ns=[time.time_ns()],
            )
            finish = _finish(request.stop, token, position)
            if finish:
                message.deltas.append(_finished(submit.stream_id, finish))
            await out.put(message)
            if finish:
                return


def _told(submit: inference_pb2.SessionSubmit, start: int) -> inference_pb2.SessionResponse:
    """Of two tokens of a prompt, with as many rivals as it asks for."""
    count = submit.request.prompt_logprobs
    tokens = submit.request.prompt_token_ids[start : start + 2]
    rivals = [token + i for token in tokens for i in range(count)]
    told = inference_pb2.PromptLogProbabilities(
        owners=[submit.stream_id],
        starts=[start],
        counts=[len(tokens)],
        logprobs=[-token for token in tokens],
        top_counts=[count],
        top_token_ids=rivals,
        top_logprobs=[-rival for rival in rivals],
    )
    return inference_pb2.SessionResponse(prompt_log_probabilities=told)


def _finished(stream_id: int, reason: Any) -> inference_pb2.SessionDelta:
    end = inference_pb2.GenerateResponse(finish_reason=reason)
    return inference_pb2.SessionDelta(stream_id=stream_id, response=end)


def _finish(stop: inference_pb2.StopConditions, token: int, position: int) -> Any:
    if token in stop.stop_token_ids or (token in stop.eos_token_ids and not stop.ignore_eos):
        return inference_pb2.FINISH_REASON_STOP
    if position + 1 == stop.max_new_tokens:
        return inference_pb2.FINISH_REASON_LENGTH
    return inference_pb2.FINISH_REASON_UNSPECIFIED


class StubCluster(cluster_pb2_grpc.ClusterServiceServicer):
    def __init__(self, state: StubState) -> None:
        self._state = state

    async def ApplyTopology(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._state.topologies.append(request)
        return cluster_pb2.ApplyTopologyResponse()

    async def GetRuntime(self, request: Any, context: Any) -> Any:  # noqa: N802
        replica = model_pb2.Replica(
            node_id="node_0", state=model_pb2.REPLICA_STATE_READY, active_requests=2
        )
        model = model_pb2.ModelInfo(spec=model_pb2.ModelSpec(name="echo"), replicas=[replica])
        statistics = cluster_pb2.Statistics(
            routed_by_node={"node_0": 7}, placed_by_node={"node_0": 1}
        )
        return cluster_pb2.GetRuntimeResponse(
            snapshot=cluster_pb2.RuntimeSnapshot(
                workers=[cluster_pb2.WorkerInfo(node_id="node_0")],
                models=[model],
                statistics=statistics,
            )
        )

    async def ResetStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        return cluster_pb2.ResetStatisticsResponse()


class StubModels(model_pb2_grpc.ModelServiceServicer):
    def __init__(self, state: StubState) -> None:
        self._state = state

    async def ListModels(self, request: Any, context: Any) -> Any:  # noqa: N802
        return model_pb2.ListModelsResponse()

    async def GetModel(self, request: Any, context: Any) -> Any:  # noqa: N802
        return model_pb2.GetModelResponse(
            model=model_pb2.ModelInfo(
                spec=model_pb2.ModelSpec(name=request.name),
                facts=model_pb2.ModelFacts(vocab_size=1000),
            )
        )

    async def DeployModel(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self._state.deployed.append(request)
        yield model_pb2.DeployModelResponse(
            progress=model_pb2.DeployProgress(
                node_id="node_0",
                state=model_pb2.REPLICA_STATE_LOADING,
                packed_bytes=1,
                total_bytes=2,
            )
        )
        error = PreconditionError("half a file", reason=ErrorReason.CHECKPOINT_INVALID)
        if self._state.fail_deploy:
            await abort(context, error)
        self._state.models.add(request.spec.name)
        yield model_pb2.DeployModelResponse(
            result=model_pb2.DeployResult(
                ready_node_ids=["node_0"],
                failed=[model_pb2.NodeFailure(node_id="node_1", error=to_detail(error))]
                if request.replica_count > 1
                else [],
                evicted=[model_pb2.EvictedReplica(node_id="node_0", model="old")],
            )
        )

    async def UndeployModel(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.name not in self._state.models:
            await abort(context, NotFoundError(f"no model {request.name!r}"))
        self._state.models.remove(request.name)
        return model_pb2.UndeployModelResponse(removed_node_ids=["node_0"])


def make_server(state: StubState) -> grpc.aio.Server:
    server = grpc.aio.server(options=server_options())
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(StubInference(state), server)
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(StubCluster(state), server)
    model_pb2_grpc.add_ModelServiceServicer_to_server(StubModels(state), server)
    return server


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", required=True)
    parser.add_argument("--lifeline-fd", type=int)
    parser.add_argument("--lifeline-folder", type=Path)
    parser.add_argument("--ready-fd", type=int)
    options, others = parser.parse_known_args()
    if os.environ.get("STUB_FAILS") and "--node-id" in others:
        sys.exit("stub worker: no room on the device")

    async def serve() -> None:
        stop = StopSignal()
        server = make_server(StubState())
        server.add_insecure_port(options.listen)
        await server.start()
        announce_ready(options.listen, options.ready_fd)
        await stop.wait()
        await server.stop(grace=0)

    return run_daemon(
        serve,
        name="stub",
        lifeline_fd=options.lifeline_fd,
        lifeline_folder=options.lifeline_folder,
    )


if __name__ == "__main__":
    sys.exit(main())
