"""``python -m tests.chaos.soak``: twice what the service can take, for as long as wanted.

Every answer must be right or a refusal that says when to come again, and the memory of every daemon
must be flat once it is warm.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from aegaeon import LLMService
from aegaeon.errors import AegaeonError, ResourceExhaustedError
from tests.chaos.cluster import Cluster, running_cluster
from tests.chaos.fleet import Nursery
from tests.chaos.oracle import Oracle, make_models
from tests.chaos.topology import MIB, Topology

#: Requests that the scheduler takes, of all models; clients at once are twice as many.
MAX_REQUESTS = 32
#: Part of the time after which a daemon counts as warm, and what it may grow by after that.
WARM_PART = 0.4
GROWTH_BYTES = 8 << 20
GROWTH_PER_MINUTE_BYTES = 1 << 20
_TOPOLOGY = Topology((("simple", "simple"),), 128 * MIB, 4, "deadline")


@dataclass
class Report:
    """What happened, and resident bytes by daemon over time."""

    minutes: float
    served: int = 0
    refused: int = 0
    cancelled: int = 0
    resident: dict[str, list[int]] = field(default_factory=dict)

    def growth(self) -> dict[str, int]:
        """Bytes by daemon, from warm to the end: the least of the last samples against the most of
        those around the warm point."""
        found = {}
        for name, samples in self.resident.items():
            warm = int(len(samples) * WARM_PART)
            found[name] = min(samples[-3:]) - max(samples[: warm + 1])
        return found

    def allowed(self) -> int:
        return int(GROWTH_BYTES + GROWTH_PER_MINUTE_BYTES * self.minutes * (1 - WARM_PART))


def soak(minutes: float, seed: int) -> Report:
    """Run it; raises AssertionError for a wrong token, a wrong refusal or a leak."""
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    shm_dir = Path(tempfile.mkdtemp(prefix="soak-", dir="/dev/shm"))
    nursery = Nursery()
    try:
        models = make_models(folder)
        oracle = Oracle(models)
        (folder / "run").mkdir()
        limits = {"max_requests": MAX_REQUESTS}
        with running_cluster(
            nursery, _TOPOLOGY, models, folder / "run", shm_dir, gateway=False, limits=limits
        ) as (cluster, service):
            oracle.learn(service)
            report = Report(minutes)
            asyncio.run(_run(report, cluster, service, oracle, seed))
            cluster.rest()
    finally:
        nursery.close()
        shutil.rmtree(shm_dir)
    shutil.rmtree(folder)
    return report


async def _run(
    report: Report, cluster: Cluster, service: LLMService, oracle: Oracle, seed: int
) -> None:
    end = time.monotonic() + report.minutes * 60
    clients = [
        _client(number, seed, end, report, service, oracle) for number in range(2 * MAX_REQUESTS)
    ]
    await asyncio.gather(*clients, _watch(report, cluster, end))


async def _client(
    number: int, seed: int, end: float, report: Report, service: LLMService, oracle: Oracle
) -> None:
    chance = random.Random(f"{seed} {number}")
    while time.monotonic() < end:
        question, count = chance.choice(oracle.questions), chance.randint(1, 100)
        stream = service.stream_async(question.request(count))
        leaves_after = chance.randint(1, count) if chance.random() < 0.1 else count + 1
        got: list[int] = []
        try:
            async for step in stream:
                got.append(step.new_token_id)
                if len(got) == leaves_after:
                    break
        except ResourceExhaustedError as error:
            hint_s = error.retry_after_s
        else:
            hint_s = 0.0
        finally:
            await stream.aclose()
        if hint_s != 0.0:
            report.refused += 1
            assert hint_s is not None, "a refusal without a time to come again"
            await asyncio.sleep(min(hint_s, 1.0) * chance.random())
            continue
        oracle.check(question, len(got) if leaves_after <= count else count, got)
        report.served += leaves_after > count
        report.cancelled += leaves_after <= count


async def _watch(report: Report, cluster: Cluster, end: float) -> None:
    pause_s = max(report.minutes * 60 / 100, 0.5)
    while time.monotonic() < end:
        for name, daemon in cluster.fleet.daemons.items():
            resident = psutil.Process(daemon.pid).memory_info().rss
            report.resident.setdefault(name, []).append(resident)
        await asyncio.sleep(pause_s)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the report here")
    options = parser.parse_args()
    try:
        report = soak(options.minutes, options.seed)
    except (AssertionError, AegaeonError) as error:
        print(f"FAILED: {error!r}", file=sys.stderr)
        return 1
    growth, allowed = report.growth(), report.allowed()
    summary = {**asdict(report), "growth_bytes": growth, "allowed_bytes": allowed}
    summary["resident_mib"] = {
        name: [round(samples[i] / MIB, 1) for i in (0, len(samples) // 2, -1)]
        for name, samples in summary.pop("resident").items()
    }
    print(json.dumps(summary, indent=1))
    if options.out:
        options.out.write_text(json.dumps(summary, indent=1) + "\n")
    return int(any(size > allowed for size in growth.values()))


if __name__ == "__main__":
    sys.exit(main())
