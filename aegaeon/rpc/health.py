"""Health and reflection, served by every daemon."""

from __future__ import annotations

from collections.abc import Iterable

import grpc
from grpc_health.v1 import _async as health_aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection


class Health:
    """The standard health service for the daemon as a whole ("") and for each of its services."""

    def __init__(self, server: grpc.aio.Server, services: Iterable[str]) -> None:
        self._names = ["", *services]
        self._servicer = health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        reflection.enable_server_reflection(
            [*self._names[1:], health.SERVICE_NAME, reflection.SERVICE_NAME], server
        )

    async def set_serving(self, serving: bool, names: Iterable[str] | None = None) -> None:
        """Say whether requests are taken, by everything or by the services in ``names``."""
        status = health_pb2.HealthCheckResponse
        value = status.SERVING if serving else status.NOT_SERVING
        for name in self._names if names is None else names:
            await self._servicer.set(name, value)
