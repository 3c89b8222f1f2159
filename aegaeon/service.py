"""The Python entry point: serve token ids through a scheduler, ours or a running one."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import Self

from aegaeon.client.arguments import check_arguments, check_patience
from aegaeon.client.backend import Backend
from aegaeon.client.connection import ProgressCallback
from aegaeon.client.policies import Policies
from aegaeon.client.session import RESUME_WINDOW_S
from aegaeon.config.cluster import cluster_config
from aegaeon.config.schema import PlacementPolicyName, RoutingPolicyName, SchedulingPolicyName
from aegaeon.deployment import DeployOutcome, UndeployOutcome
from aegaeon.errors import AegaeonError, ConfigError
from aegaeon.model_spec import ModelSpec
from aegaeon.node_config import NodeConfig
from aegaeon.replay import ReplayStatistics, make_requests, write_report
from aegaeon.request import Request
from aegaeon.security.settings import PLAIN, SecuritySettings
from aegaeon.snapshots import NodePlacement, NodeRouting
from aegaeon.step_output import StepOutput
from aegaeon.v1 import cluster_pb2, model_pb2
from aegaeon.workload import read_workload


class LLMService:
    """Serves requests for the models of a cluster.

    With ``address`` (``host:port`` or ``unix:path``) or ``AEGAEON_ADDRESS`` it attaches to a
    running scheduler; without either it starts scheduler and workers as children on this machine,
    which end with it, however it ends. It returns when every node is registered and every
    ``cached_models`` entry is ready, or raises with nothing left behind.

    Without a ``request_routing_policy`` the scheduler's own holds, ``prefix-aware`` unless it was
    started with another one. ``scheduling_policy`` is for daemons that are started here. With
    ``decode_work_stealing`` an idle decode engine takes a whole batch that has not run from one of
    its node that has at least ``decode_work_stealing_min_batch_gap`` batches.

    ``security`` names certificates and token for a running scheduler; not given, the environment
    does, see docs/security.md. Daemons that are started here are reachable by this user alone.

    A request whose scheduler is lost is sent again, with the tokens that it has, until one takes
    it; it fails after ``resume_window_s`` without one, or at its own ``timeout_s``. Daemons that
    were started here and die are started again, up to ``daemon_restarts`` times a minute each.

    A context manager; `close` is called at exit as well. Methods may be called from any thread.
    """

    def __init__(
        self,
        cluster_config: Sequence[NodeConfig] = (),
        *,
        address: str | None = None,
        model_placement_policy: PlacementPolicyName = "least-loaded",
        request_routing_policy: RoutingPolicyName | None = None,
        scheduling_policy: SchedulingPolicyName | None = None,
        decode_work_stealing: bool = False,
        decode_work_stealing_min_batch_gap: int = 2,
        startup_timeout_s: float = 600.0,
        security: SecuritySettings | None = None,
        resume_window_s: float = RESUME_WINDOW_S,
        daemon_restarts: int = 5,
    ) -> None:
        nodes = list(cluster_config)
        address = address or os.environ.get("AEGAEON_ADDRESS") or None
        check_arguments(nodes, address)
        check_patience(resume_window_s, daemon_restarts)
        if address is not None and scheduling_policy is not None:
            raise ConfigError(
                f"scheduling_policy = {scheduling_policy!r}: the scheduler at {address} has its "
                "own, see its option --policy; leave the argument out"
            )
        policies = Policies(
            model_placement_policy,
            request_routing_policy,
            scheduling_policy or "deadline",
            decode_work_stealing_min_batch_gap if decode_work_stealing else 0,
        )
        if address is not None and security is None:
            security = SecuritySettings.from_environment()
        backend = Backend(
            nodes,
            address,
            policies,
            startup_timeout_s,
            security or PLAIN,
            resume_window_s,
            daemon_restarts,
        )
        self._backend = backend
        # Runs when the service is collected and at exit; it must not refer to the service itself.
        self._finalizer = weakref.finalize(self, backend.close)

    @classmethod
    def from_config(cls, path: str | os.PathLike[str], *, address: str | None = None) -> LLMService:
        """The cluster that the YAML file's server section describes, with its startup models."""
        nodes, server = cluster_config(path)
        attaches = address or os.environ.get("AEGAEON_ADDRESS")
        security = SecuritySettings.from_environment(config=path) if attaches else None
        return cls(
            nodes,
            address=address,
            model_placement_policy=server.model_placement_policy,
            request_routing_policy=server.request_routing_policy,
            scheduling_policy=None if attaches else server.scheduling_policy,
            security=security,
            decode_work_stealing=server.decode_work_stealing,
            decode_work_stealing_min_batch_gap=server.decode_work_stealing_min_batch_gap,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what runs, stop daemons that were started here. Idempotent."""
        self._finalizer()

    @property
    def address(self) -> str:
        """The scheduler's address."""
        return self._backend.connection.address

    def serve(self, requests: Sequence[Request]) -> list[list[StepOutput] | AegaeonError]:
        """Serve all requests together; one list of steps or one exception each, in input order.

        Ctrl-C cancels all of them. Raises RuntimeError inside a running event loop.
        """
        _refuse_running_loop("serve", "await serve_async(...)")
        return self._backend.loop.run(self._backend.serve(requests))

    async def serve_async(
        self, requests: Sequence[Request]
    ) -> list[list[StepOutput] | AegaeonError]:
        """As `serve`, for a caller with an event loop; cancelling it cancels the requests."""
        return await self._backend.loop.bridge(self._backend.serve(requests))

    def stream(self, request: Request) -> Generator[StepOutput, None, None]:
        """The steps of one request as they are made; closing the generator early cancels it.

        Raises the error that ends the request. A reader may fall behind by all tokens that the
        request permits, which is what the steps held for it are bounded by.
        """
        _refuse_running_loop("stream", "async for step in stream_async(...)")
        loop = self._backend.loop
        stream = loop.run(self._backend.open_stream(request))
        try:
            while steps := loop.run(stream.next_steps()):
                yield from steps
        except AegaeonError as error:
            raise self._backend.explain(error) from error.__cause__
        finally:
            if self._finalizer.alive:
                loop.submit(stream.close())

    async def stream_async(self, request: Request) -> AsyncGenerator[StepOutput, None]:
        """As `stream`, for a caller with an event loop."""
        loop = self._backend.loop
        stream = await loop.bridge(self._backend.open_stream(request))
        try:
            while steps := await loop.bridge(stream.next_steps()):
                for step in steps:
                    yield step
        except AegaeonError as error:
            raise self._backend.explain(error) from error.__cause__
        finally:
            if self._finalizer.alive:
                loop.submit(stream.close())

    async def deploy_model_replicas(
        self,
        spec: ModelSpec,
        replica_count: int = 1,
        *,
        node_ids: Sequence[str] | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> DeployOutcome:
        """Make a model ready on at least ``replica_count`` nodes, or on exactly ``node_ids``.

        Part of the nodes may fail, see the outcome; raises when nothing is ready at the end.
        ``on_progress`` is called on the service's own thread.
        """
        if replica_count < 1:
            raise ConfigError(f"replica_count = {replica_count}: expected at least 1")
        return await self._backend.loop.bridge(
            self._backend.connection.deploy(
                spec,
                replica_count=replica_count,
                node_ids=node_ids or (),
                on_progress=on_progress,
            )
        )

    async def undeploy_model_replicas(
        self, spec: ModelSpec | str, *, node_ids: Sequence[str] | None = None
    ) -> UndeployOutcome:
        """Drain and remove a model from ``node_ids``, or everywhere; returns when it is gone."""
        name = spec.name if isinstance(spec, ModelSpec) else spec
        return await self._backend.loop.bridge(
            self._backend.connection.undeploy(name, node_ids or ())
        )

    def replay(
        self,
        out_path: str | os.PathLike[str],
        workload: str | os.PathLike[str] | Sequence[Request],
        *,
        models: Mapping[str, ModelSpec | str] | None = None,
    ) -> ReplayStatistics:
        """Serve a workload at its own pace; writes figures as JSON and one line per request as CSV,
        to ``out_path`` with these two suffixes.

        ``workload`` is a CSV file (see `aegaeon.workload`), whose prompts are made up, or requests
        with arrival times in seconds. ``models`` names the deployed model of each model in a file.
        Objectives are those of the specs.
        """
        _refuse_running_loop("replay", "a thread: await asyncio.to_thread(service.replay, ...)")
        backend = self._backend
        if isinstance(workload, str | os.PathLike):
            entries, homes = read_workload(workload), models or {}
            requests = make_requests(
                entries, homes, lambda names: backend.loop.run(backend.vocab_sizes(names))
            )
        else:
            requests = list(workload)
        outcomes = backend.loop.run(backend.replay(requests))
        return write_report(out_path, requests, outcomes)

    def reset(self) -> None:
        """Set the cluster's statistics to zero; requests and replicas are untouched."""
        self._backend.loop.run(self._backend.connection.reset_statistics())

    def runtime(self) -> cluster_pb2.RuntimeSnapshot:
        """Workers, engines, models and counters at this moment, as in the contract."""
        return self._backend.loop.run(self._backend.connection.runtime())

    def request_routing_snapshot(self) -> dict[str, NodeRouting]:
        """Requests by node id."""
        snapshot = self.runtime()
        nodes = sorted({worker.node_id for worker in snapshot.workers})
        active = dict.fromkeys(nodes, 0)
        for model in snapshot.models:
            for replica in model.replicas:
                active[replica.node_id] = active.get(replica.node_id, 0) + replica.active_requests
        routed = snapshot.statistics.routed_by_node
        return {node: NodeRouting(routed.get(node, 0), count) for node, count in active.items()}

    def model_placement_stats_snapshot(self) -> dict[str, NodePlacement]:
        """Replicas by node id."""
        snapshot = self.runtime()
        statistics = snapshot.statistics
        ready: dict[str, list[str]] = {worker.node_id: [] for worker in snapshot.workers}
        for model in snapshot.models:
            for replica in model.replicas:
                if replica.state == model_pb2.REPLICA_STATE_READY:
                    ready.setdefault(replica.node_id, []).append(model.spec.name)
        return {
            node: NodePlacement(
                placed=statistics.placed_by_node.get(node, 0),
                evicted=statistics.evicted_by_node.get(node, 0),
                ready_models=tuple(sorted(names)),
            )
            for node, names in sorted(ready.items())
        }


def _refuse_running_loop(name: str, instead: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        f"LLMService.{name} waits, and was called inside a running event loop, which it would "
        f"block; use {instead}"
    )
