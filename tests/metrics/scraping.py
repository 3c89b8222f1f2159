"""Asking for metrics, as Prometheus does."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

#: By name of the series and values of its labels, in the labels' order.
Samples = dict[tuple[str, ...], float]


def parse(text: str) -> Samples:
    """Every sample; histograms have their buckets, counts and sums."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scrape(path: str) -> Samples:
    """What is served at a unix socket now."""
    transport = httpx.AsyncHTTPTransport(uds=path)
    async with httpx.AsyncClient(transport=transport, base_url="http://metrics") as client:
        response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return parse(response.text)
