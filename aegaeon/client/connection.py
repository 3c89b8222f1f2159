"""Unary calls and deployments over one channel. Belongs to one event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import grpc
from google.protobuf.message import Message

from aegaeon.client.capabilities import scheduler_capabilities
from aegaeon.client.messages import to_model_spec
from aegaeon.client.policies import Policies
from aegaeon.config.schema import PlacementPolicyName, RoutingPolicyName
from aegaeon.deployment import (
    DeployOutcome,
    DeployProgress,
    EvictedReplica,
    ReplicaStateName,
    UndeployOutcome,
)
from aegaeon.errors import AegaeonError, ErrorReason, UnavailableError
from aegaeon.model_spec import ModelSpec
from aegaeon.node_config import NodeConfig
from aegaeon.rpc.channel import open_channel
from aegaeon.rpc.needs import SCHEDULER, check_scheduler
from aegaeon.rpc.status import from_detail, from_rpc_error
from aegaeon.security.settings import SecuritySettings
from aegaeon.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)

ProgressCallback = Callable[[DeployProgress], None]

_PLACEMENT: dict[PlacementPolicyName, cluster_pb2.PlacementPolicy] = {
    "least-loaded": cluster_pb2.PLACEMENT_POLICY_LEAST_LOADED,
    "round-robin": cluster_pb2.PLACEMENT_POLICY_ROUND_ROBIN,
}
_ROUTING: dict[RoutingPolicyName, cluster_pb2.RoutingPolicy] = {
    "least-outstanding": cluster_pb2.ROUTING_POLICY_LEAST_OUTSTANDING,
    "round-robin": cluster_pb2.ROUTING_POLICY_ROUND_ROBIN,
    "prefix-aware": cluster_pb2.ROUTING_POLICY_PREFIX_AWARE,
}


#: Answers of a scheduler that is there, and does not want this client.
_REFUSALS = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


#: Time to find out why there is no connection, in seconds.
_PROBLEM_S = 3.0


class Connection:
    """A channel to a scheduler; connects lazily."""

    def __init__(self, address: str, security: SecuritySettings | None = None) -> None:
        """``security`` is that of the environment when it is not given. Raises ConfigError."""
        self.address = address
        if security is None:
            security = SecuritySettings.from_environment()
        self.channel = open_channel(address, security)
        self._cluster = cluster_pb2_grpc.ClusterServiceStub(self.channel)
        self._inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self._models = model_pb2_grpc.ModelServiceStub(self.channel)

    async def close(self) -> None:
        """Close the channel; running calls are cancelled."""
        await self.channel.close(grace=None)

    async def wait_connected(self, timeout_s: float) -> None:
        """Wait for the scheduler's first answer. Raises UnavailableError."""
        try:
            await self._inference.GetCapabilities(
                inference_pb2.GetCapabilitiesRequest(), timeout=timeout_s, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:  # an older release answers, too
                return
            if error.code() in _REFUSALS:
                raise from_rpc_error(error) from error
            raise UnavailableError(
                f"no scheduler answers at {self.address} within {timeout_s:g} s: "
                f"{await self._problem() or error.details()}",
                reason=ErrorReason.SHUTTING_DOWN,
            ) from error

    async def _problem(self) -> str:
        """Why no connection comes about, such as a certificate; a call that waits never says."""
        try:
            request = inference_pb2.GetCapabilitiesRequest()
            await self._inference.GetCapabilities(request, timeout=_PROBLEM_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return error.details() or ""
        return ""

    async def apply_topology(
        self,
        nodes: Sequence[NodeConfig],
        policies: Policies,
        *,
        demand_memory: bool,
        timeout_s: float,
    ) -> None:
        """Declare nodes and policies; returns when their workers are registered.

        ``demand_memory`` refuses workers that have less host memory than the nodes name.
        """
        request = cluster_pb2.ApplyTopologyRequest(
            nodes=[_topology(node, demand_memory) for node in nodes],
            placement_policy=_PLACEMENT[policies.placement],
            routing_policy=None if policies.routing is None else _ROUTING[policies.routing],
            decode_work_stealing_min_batch_gap=policies.stealing_min_batch_gap,
        )
        async with _errors():
            await self._cluster.ApplyTopology(request, timeout=timeout_s)

    async def deploy(
        self,
        spec: ModelSpec,
        *,
        replica_count: int = 0,
        node_ids: Sequence[str] = (),
        on_progress: ProgressCallback | None = None,
    ) -> DeployOutcome:
        """Make a model READY; raises when nothing is ready at the end."""
        request = model_pb2.DeployModelRequest(
            spec=to_model_spec(spec), replica_count=replica_count, node_ids=node_ids
        )
        async with _errors():
            await self._check(request)
            async for response in self._models.DeployModel(request):
                if response.HasField("result"):
                    return _outcome(response.result)
                if on_progress is not None:
                    on_progress(_progress(response.progress))
        raise AegaeonError(f"deploying {spec.name!r}: the scheduler ended the call with no result")

    async def undeploy(self, name: str, node_ids: Sequence[str] = ()) -> UndeployOutcome:
        """Drain and remove replicas; returns when they are gone."""
        request = model_pb2.UndeployModelRequest(name=name, node_ids=node_ids)
        async with _errors():
            response = await self._models.UndeployModel(request)
        failed = {failure.node_id: from_detail(failure.error) for failure in response.failed}
        return UndeployOutcome(removed=tuple(response.removed_node_ids), failed=failed)

    async def _check(self, request: Message) -> None:
        """Raise PreconditionError where the scheduler would ignore part of a request."""
        needs = SCHEDULER.needs(request)
        if needs:
            check_scheduler(needs, await scheduler_capabilities(self._inference))

    async def get_model(self, name: str) -> model_pb2.ModelInfo:
        """A deployed model."""
        async with _errors():
            response = await self._models.GetModel(model_pb2.GetModelRequest(name=name))
        return response.model

    async def list_models(self) -> list[model_pb2.ModelInfo]:
        """All deployed models, by name."""
        async with _errors():
            response = await self._models.ListModels(model_pb2.ListModelsRequest())
        return list(response.models)

    async def runtime(self) -> cluster_pb2.RuntimeSnapshot:
        """The cluster at this moment."""
        async with _errors():
            response = await self._cluster.GetRuntime(cluster_pb2.GetRuntimeRequest())
        return response.snapshot

    async def drain(
        self, node_id: str = "", worker_index: int | None = None, *, resume: bool = False
    ) -> AsyncIterator[cluster_pb2.DrainResponse]:
        """Take work off a node, one of its workers, or, without a node, off the scheduler; what is
        left, until nothing is. ``resume`` takes it back. See the contract."""
        request = cluster_pb2.DrainRequest(
            node_id=node_id, worker_index=worker_index, resume=resume
        )
        async with _errors():
            async for response in self._cluster.Drain(request):
                yield response

    async def reset_statistics(self) -> None:
        """Set the runtime's counters to zero."""
        async with _errors():
            await self._cluster.ResetStatistics(cluster_pb2.ResetStatisticsRequest())


@asynccontextmanager
async def _errors() -> AsyncIterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error


def _topology(node: NodeConfig, demand_memory: bool) -> cluster_pb2.NodeTopology:
    topology = cluster_pb2.NodeTopology(
        node_id=node.node_id,
        num_engines=node.num_engines,
        num_prefill_engines=node.num_prefill_engines,
        num_decode_engines=node.num_decode_engines,
        tensor_parallel_size=node.tensor_parallel_size,
    )
    if demand_memory:  # sizes that the node leaves open are the workers' to choose
        topology.cpu_num_slabs = node.cpu_num_slabs or 0
        topology.cpu_slab_bytes = node.cpu_slab_size_bytes or 0
        topology.weight_cache_bytes = node.model_cache_size or 0
    return topology


def _progress(message: model_pb2.DeployProgress) -> DeployProgress:
    name = model_pb2.ReplicaState.Name(message.state)
    return DeployProgress(
        node_id=message.node_id,
        state=cast(ReplicaStateName, name.removeprefix("REPLICA_STATE_").lower()),
        packed_bytes=message.packed_bytes,
        total_bytes=message.total_bytes,
    )


def _outcome(message: model_pb2.DeployResult) -> DeployOutcome:
    return DeployOutcome(
        ready=tuple(message.ready_node_ids),
        failed={failure.node_id: from_detail(failure.error) for failure in message.failed},
        evicted=tuple(EvictedReplica(entry.node_id, entry.model) for entry in message.evicted),
    )
