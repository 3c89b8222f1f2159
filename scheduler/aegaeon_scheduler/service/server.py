"""The gRPC server: services, health, reflection, and an orderly end."""

from __future__ import annotations

import logging
from pathlib import Path

from aegaeon.metrics.server import MetricsServer
from aegaeon.rpc.address import bind
from aegaeon.rpc.channel import make_server
from aegaeon.rpc.health import Health
from aegaeon.tracing import Tracing
from aegaeon.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)
from aegaeon_scheduler.config import DaemonConfig
from aegaeon_scheduler.core.events import ClusterRestored
from aegaeon_scheduler.core.notices import Notice, ReplicaChanged, WorkerChanged
from aegaeon_scheduler.service.cluster_service import ClusterService
from aegaeon_scheduler.service.drains import Drains
from aegaeon_scheduler.service.driver import Driver
from aegaeon_scheduler.service.inference import InferenceService
from aegaeon_scheduler.service.metrics import SchedulerMetrics
from aegaeon_scheduler.service.models import ModelService
from aegaeon_scheduler.service.registry import Registry
from aegaeon_scheduler.service.request_log import log_request
from aegaeon_scheduler.service.request_spans import RequestSpans
from aegaeon_scheduler.service.state_file import StateFile

_log = logging.getLogger(__name__)

_INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
_SERVICES = [
    service.full_name
    for file in (inference_pb2, model_pb2, cluster_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
]


class SchedulerServer:
    """One scheduler; `start` it once and `stop` it once, on one event loop."""

    def __init__(self, config: DaemonConfig) -> None:
        self._config = config
        self.driver = Driver(config.core, config.rejoin_window_ns)
        self.driver.listen(log_request)
        self._tracing = Tracing.from_environment("aegaeon-scheduler")
        if self._tracing is not None:
            spans = RequestSpans(self._tracing, self.driver.cluster.state)
            self.driver.listen(spans.on_notice)
        self._registry = Registry(self.driver, config.lease_ttl_ns, config.security)
        self._server = make_server(config.security)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(
            InferenceService(self.driver), self._server
        )
        model_pb2_grpc.add_ModelServiceServicer_to_server(
            ModelService(self.driver, self._keep), self._server
        )
        cluster_pb2_grpc.add_ClusterServiceServicer_to_server(
            ClusterService(
                self.driver,
                self._registry,
                Drains(self.driver, self._set_serving),
                self._keep,
            ),
            self._server,
        )
        self._health = Health(self._server, _SERVICES)
        state = self.driver.cluster.state
        self._state_file = (
            None if config.state_file is None else StateFile(config.state_file, state)
        )
        self._draining = False
        self.driver.listen(self._on_notice)
        self._metrics: MetricsServer | None = None

    async def start(self) -> str:
        """Bind and serve; returns the address to dial, with the real port."""
        config = self._config
        if self._state_file is not None:
            self.driver.apply(ClusterRestored(self._state_file.load()))
        address = bind(
            self._server,
            config.listen,
            insecure_bind=config.insecure_bind,
            settings=config.security,
        )
        if config.metrics_listen is not None:
            metrics = SchedulerMetrics(self.driver.cluster.state)
            self._metrics = MetricsServer(metrics.registry, metrics.refresh)
            await self._metrics.start(
                config.metrics_listen,
                insecure_bind=config.insecure_bind,
                settings=config.security,
            )
            self.driver.measure(metrics)
        await self._server.start()
        self.driver.rejoining.begin()
        await self._health.set_serving(True)
        await self._tell_health()
        _log.info("serving on %s", address)
        return address

    async def stop(self) -> None:
        """Stop intake, end what runs with SHUTTING_DOWN, let calls flush, close the workers."""
        _log.info("stopping with %d requests", len(self.driver.cluster.state.sequences))
        await self._health.set_serving(False)
        self.driver.end_all()
        await self._server.stop(self._config.shutdown_grace_s)
        self._registry.close()
        await self.driver.close()
        if self._state_file is not None:
            await self._state_file.close()
        if self._metrics is not None:
            await self._metrics.close()
        if self._tracing is not None:
            self._tracing.close()
        self._remove_socket()

    async def _set_serving(self, serving: bool) -> None:
        self._draining = not serving
        await self._health.set_serving(serving)
        await self._tell_health()

    def _on_notice(self, notice: Notice) -> None:
        if isinstance(notice, WorkerChanged) and not self.driver.closing:
            self.driver.spawn(self._tell_health())
        if isinstance(notice, ReplicaChanged) and self._state_file is not None:
            self._state_file.changed()

    async def _keep(self) -> None:
        """Return once a restart would find what is deployed now."""
        if self._state_file is not None:
            await self._state_file.flush()

    async def _tell_health(self) -> None:
        """Tokens are there only while an engine is connected; the other services always answer."""
        engines = self.driver.cluster.state.engines.values()
        serves = not self._draining and any(engine.ready for engine in engines)
        await self._health.set_serving(serves, [_INFERENCE])

    def _remove_socket(self) -> None:
        if self._config.listen.startswith("unix:"):
            Path(self._config.listen.removeprefix("unix:")).unlink(missing_ok=True)
