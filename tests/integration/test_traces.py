"""A request's spans, from the gateway to the worker, as a collector gets them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from aegaeon.model_spec import ModelSpec
from tests.integration.daemons import until
from tests.integration.gateways import RunningGateway, running_gateway

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Keeps every span that is sent to it, by the service that sent it."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                    names = {a.key: a.value.string_value for a in part.resource.attributes}
                    for scope in part.scope_spans:
                        collector.spans += [(names["service.name"], one) for one in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def of(self, trace: str) -> dict[str, Span]:
        """A trace's spans, by service."""
        return {name: one for name, one in self.spans if one.trace_id.hex() == trace}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def traced_gateway(
    collector: Collector,
    text_specs: list[ModelSpec],
    tmp_path_factory: pytest.TempPathFactory,
    shm_dir: Path,
) -> Iterator[RunningGateway]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        folder = tmp_path_factory.mktemp("tr")
        with running_gateway(folder, shm_dir, text_specs[:1]) as running:
            yield running


def ask(gateway: RunningGateway, flags: str, model: str = "long") -> int:
    body = {"model": model, "prompt": "ab", "max_tokens": 5, "ignore_eos": True}
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-{flags}", "x-request-id": f"mine-{flags}"}
    with gateway.http() as client:
        return client.post("/v1/completions", json=body, headers=headers).status_code


def told(span: Span) -> dict[str, str | int]:
    return {a.key: a.value.string_value or a.value.int_value for a in span.attributes}


def test_a_request_is_one_trace_from_the_gateway_to_the_worker(
    traced_gateway: RunningGateway, collector: Collector
) -> None:
    # One that its caller does not sample leaves nothing.
    assert ask(traced_gateway, "00") == 200
    assert ask(traced_gateway, "01") == 200
    until(lambda: len(collector.of(TRACE)) == 3, what=str(collector.spans))
    found = collector.of(TRACE)
    gateway = found["aegaeon-gateway"]
    scheduler, worker = found["aegaeon-scheduler"], found["aegaeon-worker"]
    assert gateway.parent_span_id.hex() == CALLER
    assert scheduler.parent_span_id == worker.parent_span_id == gateway.span_id
    assert {told(span)["request_id"] for span in found.values()} == {"mine-01"}
    assert told(gateway)["http.route"] == "/v1/completions"
    assert (told(scheduler)["outcome"], told(scheduler)["tokens"]) == ("finished", 5)
    assert (told(worker)["outcome"], told(worker)["engine"]) == ("length", "node_0/0")
    [first] = worker.events
    assert first.name == "first_token"
    assert worker.start_time_unix_nano < first.time_unix_nano < worker.end_time_unix_nano
    assert gateway.start_time_unix_nano <= scheduler.start_time_unix_nano
    assert len([one for _, one in collector.spans if one.trace_id.hex() == TRACE]) == 3


def test_an_error_is_named_in_the_span(
    traced_gateway: RunningGateway, collector: Collector
) -> None:
    with traced_gateway.http() as client:
        assert client.get("/v1/models/absent").status_code == 404
    until(lambda: any(told(one).get("error.type") for _, one in collector.spans))
    [span] = [one for _, one in collector.spans if told(one).get("error.type")]
    assert (told(span)["error.type"], span.parent_span_id) == ("model_not_found", b"")
