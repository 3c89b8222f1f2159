"""The client of the HTTP gateway, against servers that are none, or that it must not trust."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aegaeon.client.gateway import GatewayError, events, get, open_client
from aegaeon.errors import ConfigError, NotRunningError
from tests.security.certificates import Authority, Certificate


@contextmanager
def serving(
    status: int, body: bytes, certificate: Certificate | None = None
) -> Iterator[tuple[str, list[str | None]]]:
    """A server with one answer: its URL, and the tokens that it was shown."""
    shown: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers["authorization"])
            self.rfile.read(int(self.headers.get("content-length", "0")))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.cert, certificate.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    scheme = "http" if certificate is None else "https"
    yield f"{scheme}://127.0.0.1:{server.server_port}", shown
    server.shutdown()
    server.server_close()


async def fetch(url: str) -> Any:
    async with open_client(url) as client:
        return await get(client, "/v1/models")


async def stream(url: str) -> list[dict[str, Any]]:
    async with open_client(url) as client:
        return [chunk async for chunk in events(client, "/v1/completions", {})]


async def test_the_token_of_the_environment_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(200, b'{"data": []}') as (url, shown):
        await fetch(url)
        monkeypatch.setenv("AEGAEON_TOKEN", "mine")
        assert await fetch(url) == {"data": []}
    assert shown == [None, "Bearer mine"]


async def test_only_named_authorities_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    with serving(200, b"{}", authority.sign("gateway")) as (url, _):
        with pytest.raises(NotRunningError, match="certificate verify failed"):
            await fetch(url)
        monkeypatch.setenv("AEGAEON_TLS_CA", str(authority.ca))
        assert await fetch(url) == {}
        monkeypatch.setenv("AEGAEON_TLS_CA", str(tmp_path / "absent"))
        with pytest.raises(ConfigError, match="absent: cannot be read"):
            await fetch(url)


@pytest.mark.parametrize(
    ("status", "body", "name"),
    [
        (404, b'{"error": {"message": "no x", "code": "model_not_found"}}', "MODEL_NOT_FOUND"),
        (502, b"<html>bad gateway</html>", "UNEXPECTED_ANSWER"),
        (200, b'data: {"error": {"message": "late", "code": "timeout"}}\n\n', "TIMEOUT"),
    ],
)
async def test_errors_have_the_name_that_was_answered(status: int, body: bytes, name: str) -> None:
    with serving(status, body) as (url, _):
        with pytest.raises(GatewayError) as caught:
            await stream(url)
        assert caught.value.name == name


async def test_comments_and_the_end_are_no_chunks() -> None:
    body = b': heartbeat\n\ndata: {"a": 1}\n\ndata: [DONE]\n\n'
    with serving(200, body) as (url, _):
        assert await stream(url) == [{"a": 1}]
