"""The documentation and the dashboard speak of metrics that exist, and of all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from aegaeon.http.metrics import GatewayMetrics
from aegaeon_scheduler.core.cluster import Cluster
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.service.metrics import SchedulerMetrics
from aegaeon_worker.service.metrics import WorkerMetrics
from tests.repo.checkout import ROOT

_SERIES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}
_NAME = re.compile(r"\b(?:aegaeon|process|python)_[a-z_]+")


@pytest.fixture(scope="module")
def registries() -> list[CollectorRegistry]:
    power = cast(Any, object())
    return [
        SchedulerMetrics(Cluster(CoreConfig()).state).registry,
        WorkerMetrics(cast(Any, None), "node_0/0", "none", power).registry,
        GatewayMetrics().registry,
    ]


def families(registries: list[CollectorRegistry]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Name, type and series names of every metric of our own."""
    for registry in registries:
        for family in registry.collect():
            series = tuple(family.name + end for end in _SERIES.get(family.type, ("",)))
            yield family.name, family.type, series


def test_every_query_of_the_dashboard_names_series_that_exist(
    registries: list[CollectorRegistry],
) -> None:
    dashboard = json.loads((ROOT / "docs/grafana/aegaeon.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [one["query"]["query"] for one in dashboard["templating"]["list"][1:]]
    used = {name for expression in expressions for name in _NAME.findall(expression)}
    known = {name for _, _, series in families(registries) for name in series}
    assert used - known == set()
    assert len(expressions) > 30


def test_the_dashboard_shows_every_metric(registries: list[CollectorRegistry]) -> None:
    text = (ROOT / "docs/grafana/aegaeon.json").read_text()
    # Counts that stand beside histograms of the same thing, and what the worker repeats.
    left_out = {"info", "tokens", "step_seconds", "turns", "switch_seconds", "copy_seconds"}
    left_out |= {"load_seconds", "sequences", "loaded_models"}
    hidden = {f"aegaeon_worker_{name}" for name in left_out}
    hidden |= {"aegaeon_request_prompt_tokens", "aegaeon_request_generation_tokens"}
    hidden |= {
        "aegaeon_prefix_index_blocks",
        "aegaeon_reserved_tokens",
        "aegaeon_replicas",
        "aegaeon_engine_sequences",
    }
    own = {name for name, _, _ in families(registries) if name.startswith("aegaeon_")}
    assert {name for name in own if name not in text} == hidden


def test_the_documentation_lists_every_metric_with_its_type(
    registries: list[CollectorRegistry],
) -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    rows = re.findall(r"^\| `(aegaeon_\w+)` \| (\w+) \|", text, re.M)
    expected = {
        (name + ("_total" if kind == "counter" else ""), kind)
        for name, kind, _ in families(registries)
        if name.startswith("aegaeon_")
    }
    assert set(rows) == expected
    assert len(rows) == len(expected)
