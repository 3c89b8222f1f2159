"""A client of the HTTP gateway."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from aegaeon.errors import AegaeonError, ConfigError, NotRunningError, UnavailableError
from aegaeon.security.settings import SecuritySettings
from aegaeon.security.token import Token

_CONNECT_S = 10.0


class GatewayError(AegaeonError):
    """An error that the gateway answered; ``name`` is its code, in capitals."""

    def __init__(self, status: int, content: bytes) -> None:
        try:
            error = json.loads(content)["error"]
            message, code = str(error["message"]), str(error["code"])
        except (ValueError, KeyError, TypeError):  # of something else that listens there
            message, code = f"HTTP status {status}: {content[:200]!r}", "unexpected_answer"
        super().__init__(message)
        self._code = code

    @property
    def name(self) -> str:
        """See the class."""
        return self._code.upper()


def open_client(url: str) -> httpx.AsyncClient:
    """A client that waits for answers as long as they take, and shows the token of the
    environment. Over HTTPS it trusts ``AEGAEON_TLS_CA``, else the system's authorities. Raises
    ConfigError."""
    settings = SecuritySettings.from_environment()
    token = Token(settings.token_file)
    return httpx.AsyncClient(
        base_url=url,
        verify=_trusted(settings.tls_ca) if url.startswith("https:") else True,
        headers=dict(token.metadata()),
        timeout=httpx.Timeout(None, connect=_CONNECT_S),
        # A request that waited for a connection would look slow.
        limits=httpx.Limits(max_connections=None),
        # Proxies of the environment are for the world outside.
        trust_env=False,
    )


async def events(
    client: httpx.AsyncClient, path: str, body: Mapping[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """The chunks of a streamed answer. Raises GatewayError, NotRunningError, UnavailableError."""
    async with (
        _errors(client),
        client.stream("POST", path, json={**body, "stream": True}) as response,
    ):
        if response.status_code != 200:
            raise GatewayError(response.status_code, await response.aread())
        async for line in response.aiter_lines():
            data = line.removeprefix("data: ")
            if data == line or data == "[DONE]":
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                raise GatewayError(response.status_code, data.encode())
            yield chunk


async def get(client: httpx.AsyncClient, path: str) -> Any:
    """The JSON answer. Raises as `events`."""
    async with _errors(client):
        response = await client.get(path)
        if response.status_code != 200:
            raise GatewayError(response.status_code, response.content)
        return response.json()


@asynccontextmanager
async def _errors(client: httpx.AsyncClient) -> AsyncIterator[None]:
    try:
        yield
    except httpx.ConnectError as error:
        raise NotRunningError(f"no gateway answers at {client.base_url}: {error}") from error
    except httpx.HTTPError as error:
        text = str(error) or type(error).__name__
        raise UnavailableError(f"the gateway at {client.base_url} broke off: {text}") from error


def _trusted(authorities: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authorities)
    except OSError as error:
        raise ConfigError(f"tls_ca {authorities}: cannot be read: {error}") from error
