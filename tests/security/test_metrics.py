"""Who gets a daemon's metrics."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge

from aegaeon.errors import ConfigError
from aegaeon.metrics.server import MetricsServer
from aegaeon.security.keys import Scope
from aegaeon.security.settings import PLAIN, SecuritySettings
from tests.security.certificates import Authority
from tests.security.makers import make_text


def server() -> MetricsServer:
    registry = CollectorRegistry()
    Gauge("things", "Things.", registry=registry).set(7)
    return MetricsServer(registry, lambda: None)


async def status(url: str, verify: ssl.SSLContext | bool = True, **headers: str) -> int:
    async with httpx.AsyncClient(verify=verify, headers=headers) as client:
        return (await client.get(f"{url}/metrics")).status_code


async def test_keys_of_their_scope_are_needed_and_tls_is_spoken(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, keys = authority.sign("daemon"), tmp_path / "keys.json"
    settings = SecuritySettings(tls_cert=pair.cert, tls_key=pair.key, keys_file=keys)
    observe, generate = make_text(keys, Scope.OBSERVE), make_text(keys, Scope.GENERATE)
    metrics = server()
    url = f"https://{await metrics.start('127.0.0.1:0', settings=settings)}"
    try:
        trust = ssl.create_default_context(cafile=str(authority.ca))
        assert await status(url, trust) == 401
        assert await status(url, trust, authorization=f"Bearer {generate}") == 403
        assert await status(url, trust, authorization=f"Bearer {observe}") == 200
        with pytest.raises(httpx.HTTPError):
            await status(url.replace("https", "http"), authorization=f"Bearer {observe}")
    finally:
        await metrics.close()


async def test_a_certificate_is_asked_for_where_the_daemon_asks_for_them(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, scraper = authority.sign("daemon"), authority.sign("prometheus")
    settings = SecuritySettings(tls_cert=pair.cert, tls_key=pair.key, tls_ca=authority.ca)
    metrics = server()
    url = f"https://{await metrics.start('0.0.0.0:0', settings=settings)}"
    url = url.replace("0.0.0.0", "127.0.0.1")
    try:
        trust = ssl.create_default_context(cafile=str(authority.ca))
        with pytest.raises(httpx.HTTPError):
            await status(url, trust)
        trust.load_cert_chain(scraper.cert, scraper.key)
        assert await status(url, trust) == 200
    finally:
        await metrics.close()


async def test_open_addresses_are_refused_without_both() -> None:
    with pytest.raises(ConfigError, match=r"not encrypted.*--insecure-bind"):
        await server().start("0.0.0.0:0", settings=PLAIN)
    metrics = server()
    await metrics.start("0.0.0.0:0", insecure_bind=True)
    await metrics.close()
