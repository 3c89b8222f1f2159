"""The gateway's Prometheus metrics; docs/metrics.md says what each one means."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.responses import Response

from aegaeon.metrics.registry import CONTENT_TYPE, REQUEST_BUCKETS, new_registry


class GatewayMetrics:
    """Of one gateway process."""

    def __init__(self) -> None:
        self.registry: CollectorRegistry = new_registry()
        self._requests = Counter(
            "aegaeon_http_requests",
            "Requests that ended, by the status of their answer.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._errors = Counter(
            "aegaeon_http_errors",
            "Answers and streams that ended with an error.",
            ["route", "code"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "aegaeon_http_request_duration_seconds",
            "From a request's head to the end of its answer.",
            ["route"],
            buckets=REQUEST_BUCKETS,
            registry=self.registry,
        )
        self.in_progress = Gauge(
            "aegaeon_http_requests_in_progress",
            "Requests without a whole answer.",
            registry=self.registry,
        )
        self.connections = Gauge(
            "aegaeon_http_connections", "Connections that are open.", registry=self.registry
        )
        self._cut = Counter(
            "aegaeon_http_connections_cut",
            "Connections that the gateway has ended, by what was wrong with them.",
            ["reason"],
            registry=self.registry,
        )

    def on_cut(self, reason: str) -> None:
        """A connection is ended by the gateway."""
        self._cut.labels(reason).inc()

    def on_end(self, method: str, route: str, status: int, code: str, seconds: float) -> None:
        """A request has ended; ``code`` is that of its error, or empty."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        if code:
            self._errors.labels(route, code).inc()


def metrics_route(metrics: GatewayMetrics) -> APIRouter:
    """GET /metrics."""
    router = APIRouter(tags=["cluster"])

    @router.get("/metrics")
    async def exposition() -> Response:
        """The gateway's metrics, in Prometheus' text format."""
        # On a thread: a scrape must not delay tokens.
        text = await asyncio.to_thread(generate_latest, metrics.registry)
        return Response(text, media_type=CONTENT_TYPE)

    return router
