"""ClusterService: topology, registrations, and what operators watch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aegaeon.capability import OF_SCHEDULER
from aegaeon.errors import AegaeonError, RequestTimeoutError, ResourceExhaustedError
from aegaeon.rpc.needs import contract_names
from aegaeon.rpc.status import abort
from aegaeon.rpc.version import CONTRACT_VERSION
from aegaeon.v1 import cluster_pb2, cluster_pb2_grpc
from aegaeon_scheduler.core.events import TopologyApplied
from aegaeon_scheduler.core.notices import Notice, WorkerChanged
from aegaeon_scheduler.core.statistics import Statistics
from aegaeon_scheduler.service.broadcast import MAX_BEHIND, Broadcast
from aegaeon_scheduler.service.drains import Drains
from aegaeon_scheduler.service.driver import Driver, shutting_down
from aegaeon_scheduler.service.registry import Registry
from aegaeon_scheduler.service.snapshot import cluster_event, engine_info, runtime_snapshot
from aegaeon_scheduler.service.topology import (
    check_memory,
    engines_of,
    missing_workers,
    topology,
)

#: Time before a caller's deadline in which it is told what is missing, in seconds.
_DEADLINE_MARGIN_S = 0.2


class ClusterService(cluster_pb2_grpc.ClusterServiceServicer):
    """Nodes, workers, and what they are doing."""

    def __init__(
        self,
        driver: Driver,
        registry: Registry,
        drains: Drains,
        keep: Callable[[], Awaitable[None]],
    ) -> None:
        """``keep`` returns once a topology outlives this scheduler, where anything does."""
        self._driver = driver
        self._registry = registry
        self._drains = drains
        self._keep = keep
        self._broadcast = Broadcast()
        self._workers_changed = asyncio.Event()
        driver.listen(self._on_notice)
        driver.on_closing(self._tell_waiting)

    async def ApplyTopology(  # noqa: N802 - named by the contract
        self, request: cluster_pb2.ApplyTopologyRequest, context: Any
    ) -> cluster_pb2.ApplyTopologyResponse:
        """Wait until the expected workers are connected, then use only their nodes."""
        state = self._driver.cluster.state
        try:
            wanted = topology(request, state.config.routing)
            await self._wait_for_workers(wanted, context.time_remaining())
            check_memory(state, wanted)
        except AegaeonError as error:
            await abort(context, error)
        self._driver.apply(wanted)
        self._driver.rejoining.topology_declared()
        await self._keep()
        engines = [engine_info(state, engine) for engine in engines_of(state, wanted)]
        return cluster_pb2.ApplyTopologyResponse(engines=engines)

    async def RegisterWorker(  # noqa: N802 - named by the contract
        self, request: cluster_pb2.RegisterWorkerRequest, context: Any
    ) -> cluster_pb2.RegisterWorkerResponse:
        """Accept a worker; it is dialled at once."""
        try:
            if self._driver.closing:
                raise shutting_down()
            epoch = self._registry.register(request)
        except AegaeonError as error:
            await abort(context, error)
        return cluster_pb2.RegisterWorkerResponse(
            epoch=epoch,
            lease_ttl_ns=self._registry.lease_ttl_ns,
            contract_version=CONTRACT_VERSION,
            capabilities=contract_names(OF_SCHEDULER),
        )

    async def RenewLease(  # noqa: N802 - named by the contract
        self, request: cluster_pb2.RenewLeaseRequest, context: Any
    ) -> cluster_pb2.RenewLeaseResponse:
        """Keep a registration alive."""
        try:
            self._registry.renew(request.epoch)
        except AegaeonError as error:
            await abort(context, error)
        return cluster_pb2.RenewLeaseResponse(lease_ttl_ns=self._registry.lease_ttl_ns)

    async def DeregisterWorker(  # noqa: N802 - named by the contract
        self, request: cluster_pb2.DeregisterWorkerRequest, context: Any
    ) -> cluster_pb2.DeregisterWorkerResponse:
        """Move a leaving worker's sequences."""
        self._registry.deregister(request.epoch)
        return cluster_pb2.DeregisterWorkerResponse()

    async def Drain(  # type: ignore[override]  # noqa: N802
        self, request: cluster_pb2.DrainRequest, context: Any
    ) -> None:
        """Tell what is left until nothing is."""
        try:
            async for answer in self._drains.run(request):
                await context.write(answer)
        except AegaeonError as error:
            await abort(context, error)

    async def GetRuntime(  # noqa: N802 - named by the contract
        self, request: cluster_pb2.GetRuntimeRequest, context: Any
    ) -> cluster_pb2.GetRuntimeResponse:
        """Everything at one moment."""
        return cluster_pb2.GetRuntimeResponse(snapshot=runtime_snapshot(self._driver))

    async def WatchEvents(  # type: ignore[override]  # noqa: N802
        self, request: cluster_pb2.WatchEventsRequest, context: Any
    ) -> None:
        """Events until the caller leaves, falls too far behind, or the daemon stops."""
        subscription = self._broadcast.subscribe()
        ignore_closing = self._driver.on_closing(subscription.end)
        # Headers now, so that the caller knows from when on it misses nothing.
        await context.send_initial_metadata(())
        try:
            while not subscription.overflowed and not subscription.ended:
                for event in await subscription.next():
                    await context.write(cluster_pb2.WatchEventsResponse(event=event))
        finally:
            ignore_closing()
            self._broadcast.unsubscribe(subscription)
        if subscription.ended:
            await abort(context, shutting_down())
        error = ResourceExhaustedError(
            f"this reader fell behind by more than {MAX_BEHIND} events; watch again, read faster",
            metadata={"limit": "events", "value": MAX_BEHIND},
        )
        await abort(context, error)

    async def ResetStatistics(  # noqa: N802 - named by the contract
        self, request: cluster_pb2.ResetStatisticsRequest, context: Any
    ) -> cluster_pb2.ResetStatisticsResponse:
        """Count from zero again."""
        state = self._driver.cluster.state
        state.statistics = Statistics()
        state.links.reset()
        for engine in state.engines.values():
            engine.turn_count = engine.switch_count = engine.token_count = 0
        self._driver.statistics_since_unix_ns = time.time_ns()
        return cluster_pb2.ResetStatisticsResponse()

    async def _wait_for_workers(self, wanted: TopologyApplied, timeout_s: float | None) -> None:
        state = self._driver.cluster.state
        limit = None if timeout_s is None else max(timeout_s - _DEADLINE_MARGIN_S, 0)
        try:
            async with asyncio.timeout(limit):
                while missing_workers(state, wanted):
                    if self._driver.closing:
                        raise shutting_down()
                    await self._workers_changed.wait()
        except TimeoutError:
            missing = ", ".join(missing_workers(state, wanted))
            raise RequestTimeoutError(
                f"workers are missing: {missing}; start them, or ask for fewer engines",
                metadata={"missing": missing},
            ) from None

    def _on_notice(self, notice: Notice) -> None:
        if isinstance(notice, WorkerChanged):
            self._tell_waiting()
        number = self._broadcast.next_number()
        if self._broadcast.watched:
            self._broadcast.publish(cluster_event(notice, number))

    def _tell_waiting(self) -> None:
        self._workers_changed.set()
        self._workers_changed = asyncio.Event()
