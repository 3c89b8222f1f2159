"""``aegaeon bench``: load on a running cluster, and how it bears it."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from aegaeon.cli import bench_options as options
from aegaeon.cli import cluster_options, generation_options
from aegaeon.errors import ConfigError

if TYPE_CHECKING:
    from aegaeon.load.arrivals import Drawn, Limits
    from aegaeon.load.runs import LoadTarget, Run
    from aegaeon.workload import WorkloadEntry


def bench(
    models: options.Models = None,
    rates: options.Rates = "0.5",
    seconds: options.Seconds = 30.0,
    input_tokens: options.InputTokens = 128,
    output_tokens: options.OutputTokens = 64,
    workload: options.Workload = None,
    seed: options.Seed = 1,
    ttft_s: options.TtftS = 10.0,
    tpot_s: options.TpotS = 0.1,
    request_timeout_s: options.RequestTimeout = 600.0,
    http: options.Through = True,
    url: generation_options.Url = None,
    address: cluster_options.Address = None,
    instance: cluster_options.Instance = None,
    timeout_s: cluster_options.Timeout = 5.0,
    out: options.Out = None,
    as_json: cluster_options.Json = False,
) -> None:
    """Send requests of Poisson arrivals to many models, and report times and deadlines met."""
    from aegaeon.cli.bench_report import show, write
    from aegaeon.load.arrivals import Drawn, Limits

    if url and not http:
        raise ConfigError("--url is a gateway's; with --grpc give --address")
    limits = Limits(ttft_s, tpot_s, request_timeout_s)
    drawn = [Drawn(rate, seconds, input_tokens, output_tokens, seed) for rate in _numbers(rates)]
    if out is not None:
        _make_folder(out)
    if http:
        from aegaeon.cli.gateway import gateway_url
        from aegaeon.load.runs import HttpTarget

        with gateway_url(url, address, instance) as found:
            runs = asyncio.run(_runs(HttpTarget(found), models, drawn, workload, seed, limits))
    else:
        from aegaeon.cli.target import find_target
        from aegaeon.load.runs import GrpcTarget

        target = GrpcTarget(find_target(address, instance).address, timeout_s)
        runs = asyncio.run(_runs(target, models, drawn, workload, seed, limits))
    if as_json:
        print(json.dumps([asdict(run.report) for run in runs], indent=2))
    else:
        show(runs)
    if out is not None:
        write(out, runs, limits)


async def _runs(
    target: LoadTarget,
    names: list[str] | None,
    drawn: list[Drawn],
    workload: Path | None,
    seed: int,
    limits: Limits,
) -> list[Run]:
    from aegaeon.load.arrivals import drawn_entries, mapped_entries
    from aegaeon.load.runs import find_models, run
    from aegaeon.workload import read_workload

    async with target as opened:
        models = await find_models(opened, names)
        plans: list[tuple[str, float | None, list[WorkloadEntry]]]
        if workload is not None:
            plans = [(workload.stem, None, mapped_entries(read_workload(workload), models))]
        else:
            plans = [
                (f"{one.rate:g} requests/s per model", one.rate, drawn_entries(one, models))
                for one in drawn
            ]
        runs = []
        for title, rate, entries in plans:
            text = f"{title}: {len(entries)} requests to {len(models)} models"
            print(text, file=sys.stderr, flush=True)
            runs.append(await run(opened, title, rate, entries, models, limits, seed))
        return runs


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--rates is {text!r}; it must be numbers with commas between") from None


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror}") from error
