"""The HTTP gateway under load: 256 streamed chats, in front of stub engines that step at a pace.

Gateway, scheduler, stub engines and callers are four processes on this machine. Text comes from a
real tokenizer. What counts is processor time: on a machine with fewer cores than these processes,
wall-clock figures say how they share it, and not what a gateway can do with a core of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from aegaeon.client.connection import Connection
from aegaeon.demo_model import fetch_demo_model
from aegaeon.model_spec import ModelSpec
from aegaeon.utils import get_tokenizer
from benchmarks.load_engine import BATCH
from benchmarks.load_processes import Daemon, LineProcess, gateway_daemon, scheduler_daemon
from benchmarks.machine import describe_command, describe_machine, describe_versions
from benchmarks.report import Report, Table, Target

STREAMS = 256
_MODELS = STREAMS // BATCH
#: Tokens per second of all streams together.
_RATES = [5_000.0, 10_000.0, 20_000.0, 30_000.0]
_TARGET = 10_000.0
_APART = 0.97
_START_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Level:
    """What was measured at one pace; counts per second, processes in cores."""

    offered: float
    tokens: float
    events: float
    least: float
    gateway: float
    scheduler: float
    clients: float
    memory_mib: float

    @property
    def gateway_us(self) -> float:
        """Processor time of the gateway per token, in microseconds."""
        return self.gateway / self.tokens * 1e6 if self.tokens else 0.0

    @property
    def per_core(self) -> float:
        """Tokens per second that a core is enough for."""
        return 1e6 / self.gateway_us if self.gateway else 0.0


def measure(seconds: float, rates: Sequence[float]) -> Iterator[Level]:
    """Levels in turn."""
    model_path = str(fetch_demo_model())
    with ExitStack() as stack:
        scheduler, folder = stack.enter_context(scheduler_daemon())
        listen = f"unix:{folder / 'w'}"
        vocabulary = ("--vocabulary", str(len(get_tokenizer(model_path))))
        workers = LineProcess(
            "benchmarks.load_workers", "--scheduler", scheduler.address, "--listen", listen,
            *vocabulary,
        )  # fmt: skip
        stack.callback(workers.close)
        models = asyncio.run(_deploy(scheduler.address, model_path))
        gateway = stack.enter_context(gateway_daemon(scheduler.address))
        callers = LineProcess(
            "benchmarks.gateway_client", "--address", gateway.address,
            "--streams", str(STREAMS), "--models", *models,
        )  # fmt: skip
        stack.callback(callers.close)
        _wait_for_streams(workers)
        for rate in rates:
            yield _level(rate, seconds, workers, callers, scheduler, gateway)


async def _deploy(scheduler: str, path: str) -> list[str]:
    connection = Connection(scheduler)
    names = [f"model{number}" for number in range(_MODELS)]
    try:
        for number, name in enumerate(names):
            await connection.deploy(ModelSpec(name, path), node_ids=[f"node{number}"])
    finally:
        await connection.close()
    return names


def _wait_for_streams(workers: LineProcess) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while (members := workers.ask("0")["members"]) != STREAMS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{members} of {STREAMS} run after {_START_TIMEOUT_S} s")
        time.sleep(0.05)


def _level(
    rate: float,
    seconds: float,
    workers: LineProcess,
    callers: LineProcess,
    scheduler: Daemon,
    gateway: Daemon,
) -> Level:
    pace = str(rate / STREAMS)
    workers.ask(pace)
    time.sleep(max(1.0, seconds / 3))  # until it is steady
    workers.ask(pace)
    before = callers.ask()["cpu_s"], scheduler.cpu_s(), gateway.cpu_s()
    start = time.perf_counter()
    time.sleep(seconds)
    made, read = workers.ask(pace), callers.ask()
    spent = scheduler.cpu_s() - before[1], gateway.cpu_s() - before[2]
    elapsed = time.perf_counter() - start
    return Level(
        offered=rate,
        tokens=made["tokens"] / elapsed,
        events=read["events"] / elapsed,
        least=read["least"] / elapsed,
        gateway=spent[1] / elapsed,
        scheduler=spent[0] / elapsed,
        clients=(read["cpu_s"] - before[0]) / elapsed,
        memory_mib=gateway.memory_mib(),
    )


def main() -> None:
    """Measure, write the report, print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=4.0, help="per level (default: %(default)s)")
    add("--rates", type=float, nargs="+", default=_RATES, help="tokens per second, in turn")
    add("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    options = parser.parse_args()
    machine = describe_machine()
    levels = list(measure(options.seconds, options.rates))
    # Where every token has an event of its own: later ones share them when the gateway is behind.
    apart = [level for level in levels if level.events >= _APART * level.tokens] or levels[:1]
    best = max(level.per_core for level in apart)
    report = Report(
        title="The HTTP gateway under load",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=describe_command("benchmarks.gateway_load"),
        machine=machine,
        versions=describe_versions(),
        settings={"streams": str(STREAMS), "models": str(_MODELS)},
        figures=[],
        targets=[Target("streamed per core", best, "tokens/s", _TARGET, at_least=True)],
        tables=[Table(_HEADER, [_row(level) for level in levels])],
    )
    report.write(options.out, "gateway-load")
    print(report.markdown())


_HEADER = [
    "offered tokens/s",
    "made",
    "events/s",
    "least per stream",
    "gateway, cores",
    "µs per token",
    "tokens/s per core",
    "scheduler, cores",
    "clients, cores",
    "gateway, MiB",
]


def _row(level: Level) -> list[str]:
    return [
        f"{level.offered:,.0f}",
        f"{level.tokens:,.0f}",
        f"{level.events:,.0f}",
        f"{level.least:.1f}",
        f"{level.gateway:.2f}",
        f"{level.gateway_us:.1f}",
        f"{level.per_core:,.0f}",
        f"{level.scheduler:.2f}",
        f"{level.clients:.2f}",
        f"{level.memory_mib:.0f}",
    ]


if __name__ == "__main__":
    main()
