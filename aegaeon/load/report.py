"""Figures of one run of load."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aegaeon.replay import ReplayRecord, summarise
from aegaeon.request import Request


@dataclass(frozen=True)
class Quantiles:
    """Of requests that have a value, by nearest rank; seconds. None where there is none."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Quantiles:
        """Of all values but None."""
        ordered = sorted(value for value in values if value is not None)
        if not ordered:
            return cls(None, None, None, None, None, None)

        def rank(share: float) -> float:
            return ordered[math.ceil(share * len(ordered)) - 1]

        mean = sum(ordered) / len(ordered)
        return cls(mean, rank(0.5), rank(0.9), rank(0.95), rank(0.99), ordered[-1])


@dataclass(frozen=True)
class LoadReport:
    """One run. Times are as the client saw them over HTTP, as the scheduler did over gRPC."""

    title: str
    #: Requests/s of each model; None for a workload file.
    rate: float | None
    requests: int
    #: By the name of their error.
    failed: dict[str, int]
    duration_s: float
    requests_per_s: float
    output_tokens: int
    tokens_per_s: float
    ttft: Quantiles
    tpot: Quantiles
    longest_gap: Quantiles
    #: Share of all tokens asked for that met their deadlines.
    token_attainment: float
    #: Share of requests whose first token and every gap met the limits.
    request_attainment: float


def report(
    title: str,
    rate: float | None,
    records: Sequence[ReplayRecord],
    requests: Sequence[Request],
    errors: Iterable[str],
) -> LoadReport:
    """Figures over all records; ``errors`` are the names of those that ended requests."""
    sums = summarise(records, requests)
    succeeded = sums.requests - sums.failed
    return LoadReport(
        title=title,
        rate=rate,
        requests=sums.requests,
        failed=dict(Counter(errors)),
        duration_s=sums.duration_s,
        requests_per_s=succeeded / sums.duration_s if sums.duration_s else 0.0,
        output_tokens=sums.output_tokens,
        tokens_per_s=sums.tokens_per_s,
        ttft=Quantiles.of(record.ttft_s for record in records),
        tpot=Quantiles.of(record.tpot_s for record in records),
        longest_gap=Quantiles.of(record.longest_gap_s for record in records),
        token_attainment=sums.attainment,
        request_attainment=sums.every_gap_attainment,
    )


def distribution(values: Iterable[float | None], points: int = 100) -> list[tuple[float, float]]:
    """The values' cumulative distribution: value and share of values up to it."""
    ordered = sorted(value for value in values if value is not None)
    count = len(ordered)
    ranks = sorted({max(1, math.ceil(count * step / points)) for step in range(points + 1)})
    return [(ordered[rank - 1], rank / count) for rank in ranks] if count else []
