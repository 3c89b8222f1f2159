"""OpenTelemetry traces, where the environment says where they go.

The gateway's span of a request is the parent of the scheduler's and of the worker's; the W3C
``traceparent`` carries it, beside the request. A request without one, or one that its caller does
not sample, costs nothing.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

_log = logging.getLogger(__name__)

#: Standard names: https://opentelemetry.io/docs/specs/otel/protocol/exporter/
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
#: Time to send the last spans at the end, in seconds.
_FLUSH_S = 2.0

#: Of the span that this task's requests belong to; empty outside of any.
current_trace_parent: ContextVar[str] = ContextVar("aegaeon_trace_parent", default="")


class Tracing:
    """One process's spans. Spans are ended by whoever began them, on any thread."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("aegaeon")

    @classmethod
    def from_environment(cls, service: str) -> Tracing | None:
        """Spans to the endpoint that OTEL_EXPORTER_OTLP_ENDPOINT names; None where it names none,
        or where the packages of ``aegaeon-grpc[tracing]`` are missing."""
        if not any(os.environ.get(name) for name in _ENDPOINTS):
            return None
        if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return None
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            _log.warning("no traces: %s; pip install 'aegaeon-grpc[tracing]'", error)
            return None
        name = os.environ.get("OTEL_SERVICE_NAME") or service
        provider = TracerProvider(resource=Resource.create({"service.name": name}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    def begin(
        self, name: str, trace_parent: str, attributes: Mapping[str, str | int | float]
    ) -> Span:
        """A span below ``trace_parent``, or the first one of a trace when that is empty."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract({"traceparent": trace_parent})
        return self._tracer.start_span(name, context, attributes=attributes)

    def close(self) -> None:
        """Send what is left, but do not wait for an endpoint that does not answer."""
        sender = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        sender.start()
        sender.join(_FLUSH_S)


def trace_parent_of(span: Span) -> str:
    """What carries a span to another process; empty for one that is not sampled."""
    context = span.get_span_context()
    if not context.trace_flags.sampled:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"


def fail(span: Span, error: BaseException) -> None:
    """Mark a span that did not end well."""
    from opentelemetry.trace import StatusCode

    span.record_exception(error)
    span.set_status(StatusCode.ERROR, str(error))
