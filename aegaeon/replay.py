"""Replaying a workload at its own pace, and what was measured."""

from __future__ import annotations

import asyncio
import csv
import itertools
import json
import math
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

from aegaeon.errors import AegaeonError
from aegaeon.model_spec import ModelSpec
from aegaeon.request import Request
from aegaeon.step_output import StepOutput
from aegaeon.workload import WorkloadEntry

T = TypeVar("T")
Outcome = list[StepOutput] | AegaeonError


@dataclass(frozen=True)
class ReplayRecord:
    """One request. Times are seconds by the scheduler's clock; None where there was no token."""

    request_id: str
    model: str
    #: After the replay began.
    arrival_s: float
    input_tokens: int
    output_tokens: int
    ttft_s: float | None
    #: Mean over the tokens after the first.
    tpot_s: float | None
    #: Its last token, after the replay began.
    finished_s: float | None
    #: Longest time between two tokens.
    longest_gap_s: float | None
    #: Share of tokens that met their deadline: arrival + TTFT objective + TPOT objective each.
    attainment: float
    #: It succeeded, and its first token and every gap met the objectives.
    every_gap_met: bool
    error: str


@dataclass(frozen=True)
class ReplayStatistics:
    """A whole replay; means and percentiles over requests that produced tokens."""

    requests: int
    failed: int
    duration_s: float
    output_tokens: int
    tokens_per_s: float
    ttft_mean_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    tpot_p99_s: float
    #: Share of all tokens asked for that met their deadlines; those of failed requests did not.
    attainment: float
    #: Share of requests whose first token and every gap met the objectives.
    every_gap_attainment: float


async def run_replay(
    requests: Sequence[Request],
    serve: Callable[[Request], Awaitable[T]],
) -> list[tuple[float, T]]:
    """Serve each request at its arrival time, counted from the earliest.

    Returns the time of its arrival (seconds since the Unix epoch) and its outcome, in input order.
    """
    begin = time.time()
    earliest = min((request.arrival_time for request in requests), default=0.0)

    async def one(request: Request) -> tuple[float, T]:
        arrival = begin + request.arrival_time - earliest
        await asyncio.sleep(max(0.0, arrival - time.time()))
        return arrival, await serve(request)

    return list(await asyncio.gather(*(one(request) for request in requests)))


def make_requests(
    entries: Iterable[WorkloadEntry],
    models: Mapping[str, ModelSpec | str],
    vocab_sizes: Callable[[Iterable[str]], Mapping[str, int]],
) -> list[Request]:
    """Requests with made-up prompts; the same workload always gives the same ones.

    ``models`` names the deployed model of each workload model; those it lacks keep their name.
    End ids are ignored, so that the outputs have the workload's lengths.
    """
    pairs = [(_without_prompt(i, entry, models), entry) for i, entry in enumerate(entries)]
    sizes = vocab_sizes(sorted({request.model_name for request, _ in pairs}))
    requests = []
    for number, (request, entry) in enumerate(pairs):
        vocabulary = range(sizes[request.model_name])
        prompt = random.Random(number).choices(vocabulary, k=entry.input_tokens)
        requests.append(replace(request, prompt_token_ids=prompt))
    return requests


def write_report(
    out_path: str | os.PathLike[str],
    requests: Sequence[Request],
    outcomes: Sequence[tuple[float, Outcome]],
) -> ReplayStatistics:
    """One line per request to ``out_path`` with suffix .csv, figures to the same with .json."""
    begin = min((arrival for arrival, _ in outcomes), default=0.0)
    records = [
        to_record(request, arrival, begin, outcome)
        for request, (arrival, outcome) in zip(requests, outcomes, strict=True)
    ]
    statistics = summarise(records, requests)
    path = Path(out_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(ReplayRecord)])
        writer.writeheader()
        writer.writerows(asdict(record) for record in records)
    text = json.dumps(asdict(statistics), indent=2) + "\n"
    path.with_suffix(".json").write_text(text, encoding="utf-8")
    return statistics


def to_record(request: Request, arrival: float, begin: float, outcome: Outcome) -> ReplayRecord:
    """What came of one request; tokens on time by its `objectives_s`."""
    steps = outcome if isinstance(outcome, list) else []
    times = [step.received_unix_ns / 1e9 - arrival for step in steps]
    ttft_slo_s, tpot_slo_s = request.objectives_s
    met = sum(t <= ttft_slo_s + tpot_slo_s * i for i, t in enumerate(times))
    longest = max((late - early for early, late in itertools.pairwise(times)), default=None)
    succeeded = isinstance(outcome, list)
    return ReplayRecord(
        request_id=str(request.request_id),
        model=request.model_name,
        arrival_s=arrival - begin,
        input_tokens=len(request.prompt_token_ids),
        output_tokens=len(steps),
        ttft_s=times[0] if times else None,
        tpot_s=(times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None,
        finished_s=arrival - begin + times[-1] if times else None,
        longest_gap_s=longest,
        attainment=met / len(times) if times else 0.0,
        every_gap_met=(
            succeeded
            and bool(times)
            and times[0] <= ttft_slo_s
            and (longest is None or longest <= tpot_slo_s)
        ),
        error="" if succeeded else f"{type(outcome).__name__}: {outcome}",
    )


def summarise(records: Sequence[ReplayRecord], requests: Sequence[Request]) -> ReplayStatistics:
    """Figures over all records."""
    ttfts = [record.ttft_s for record in records if record.ttft_s is not None]
    tpots = [record.tpot_s for record in records if record.tpot_s is not None]
    duration = max((record.finished_s or 0.0 for record in records), default=0.0)
    tokens = sum(record.output_tokens for record in records)
    # A failed request missed the deadlines of all tokens that it asked for.
    due = [
        record.output_tokens or request.decode_tokens or 1
        for record, request in zip(records, requests, strict=True)
    ]
    met = sum(record.attainment * count for record, count in zip(records, due, strict=True))
    return ReplayStatistics(
        requests=len(records),
        failed=sum(bool(record.error) for record in records),
        duration_s=duration,
        output_tokens=tokens,
        tokens_per_s=tokens / duration if duration else 0.0,
        ttft_mean_s=_mean(ttfts),
        ttft_p99_s=_percentile(ttfts, 0.99),
        tpot_mean_s=_mean(tpots),
        tpot_p99_s=_percentile(tpots, 0.99),
        attainment=met / sum(due) if due else 1.0,
        every_gap_attainment=(
            sum(record.every_gap_met for record in records) / len(records) if records else 1.0
        ),
    )


def _without_prompt(
    number: int, entry: WorkloadEntry, models: Mapping[str, ModelSpec | str]
) -> Request:
    return Request(
        model=models.get(entry.model, entry.model),
        arrival_time=entry.arrival_s,
        request_id=number,
        prompt_token_ids=(),
        decode_tokens=entry.output_tokens,
        ignore_eos=True,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else 0.0
