"""The application: routes, errors, limits."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI
from starlette.types import ASGIApp

from aegaeon.http import errors
from aegaeon.http.cluster_routes import cluster_routes
from aegaeon.http.completions import completion_routes
from aegaeon.http.gateway import Gateway
from aegaeon.http.key_check import KeyCheck
from aegaeon.http.metrics import GatewayMetrics, metrics_route
from aegaeon.http.openapi import describe_bodies
from aegaeon.http.request_scope import RequestScope
from aegaeon.http.responses.routes import responses_routes
from aegaeon.http.tokenize_routes import tokenize_routes
from aegaeon.security.guard import Guard
from aegaeon.tracing import Tracing


def make_app(
    gateway: Gateway,
    max_body_bytes: int,
    metrics: GatewayMetrics,
    guard: Guard | None,
    tracing: Tracing | None,
) -> ASGIApp:
    """What a server runs; the OpenAPI document is at ``/openapi.json``. Without ``guard``,
    everybody may do everything."""
    app = FastAPI(
        title="Aegaeon gateway",
        version=version("aegaeon-grpc"),
        # Their pages would load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    errors.install(app)
    for router in (completion_routes, responses_routes, tokenize_routes, cluster_routes):
        app.include_router(router(gateway))
    app.include_router(metrics_route(metrics))
    describe_bodies(app)
    checked = app if guard is None else KeyCheck(app, guard)
    return RequestScope(checked, max_body_bytes, metrics, tracing)
