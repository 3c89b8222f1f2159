"""One scheduler with stub workers, offered any load, level by level."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from aegaeon.client.connection import Connection
from aegaeon.model_spec import ModelSpec
from benchmarks.load_engine import BATCH, ENGINES
from benchmarks.load_processes import Daemon, LineProcess, scheduler_daemon

#: Added latency that 99 % of the tokens must keep for a load to be carried.
LATENCY_MS = 20.0
#: Share of the offered tokens that must arrive for that.
CARRIED = 0.99
#: New tokens of a request that shall not end while it is measured.
_ENDLESS = 30_000
_START_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Load:
    """Requests that run all the time, spread evenly over engines and channels."""

    name: str
    way: str = "session"
    channels: int = 8
    engines: int = ENGINES
    requests: int = ENGINES * BATCH
    new_tokens: int = _ENDLESS

    def flags(self) -> list[str]:
        """For `benchmarks.load_client`."""
        numbers = {
            "channels": self.channels,
            "engines": self.engines,
            "requests": self.requests,
            "new-tokens": self.new_tokens,
        }
        pairs = [(f"--{name}", str(value)) for name, value in numbers.items()]
        return ["--way", self.way, *(word for pair in pairs for word in pair)]


@dataclass(frozen=True)
class Level:
    """What was measured at one pace of the engines; processes in cores, counts per second."""

    load: Load
    steps_per_s: float
    tokens: float
    messages: float
    ends: float
    #: Steps that the stub workers sent late, because they or the machine could not keep up.
    late: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    scheduler: float
    workers: float
    clients: float
    memory_mib: float

    @property
    def offered(self) -> float:
        """Tokens per second that the workers make."""
        return self.load.requests * self.steps_per_s

    @property
    def carried(self) -> bool:
        """Whether everything arrived in time."""
        return self.tokens >= CARRIED * self.offered and self.p99_ms <= LATENCY_MS

    @property
    def scheduler_us(self) -> float:
        """Processor time of the scheduler per token, in microseconds."""
        return self.scheduler / self.tokens * 1e6 if self.tokens else 0.0


class Bench:
    """Offers loads, one at a time."""

    def __init__(self, daemon: Daemon, workers: LineProcess, seconds: float) -> None:
        self._daemon = daemon
        self._workers = workers
        self._seconds = seconds

    def measure(self, load: Load, rates: Sequence[float]) -> Iterator[Level]:
        """Levels in turn, until one is not carried."""
        client = LineProcess(
            "benchmarks.load_client", "--scheduler", self._daemon.address, *load.flags()
        )
        try:
            self._wait_for_members(load.requests)
            for rate in rates:
                level = self._level(load, client, rate)
                yield level
                if not level.carried:
                    break
            self._workers.ask("0")
        finally:
            client.close()
        self._wait_for_members(0)

    def _wait_for_members(self, count: int) -> None:
        """Until so many sequences are in turns."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while (members := self._workers.ask("0")["members"]) != count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{members} of {count} sequences run after {_START_TIMEOUT_S} s")
            time.sleep(0.05)

    def _level(self, load: Load, client: LineProcess, rate: float) -> Level:
        self._workers.ask(str(rate))
        time.sleep(max(1.0, self._seconds / 3))  # until it is steady
        workers, clients, cpu_s = self._workers.ask(str(rate)), client.ask(), self._daemon.cpu_s()
        before = workers["cpu_s"], clients["cpu_s"], cpu_s
        start = time.perf_counter()
        time.sleep(self._seconds)
        workers, clients, cpu_s = self._workers.ask(str(rate)), client.ask(), self._daemon.cpu_s()
        seconds = time.perf_counter() - start
        return Level(
            load=load,
            steps_per_s=rate,
            tokens=clients["tokens"] / seconds,
            messages=clients["messages"] / seconds,
            ends=clients["ends"] / seconds,
            late=workers["late"] / seconds,
            p50_ms=clients["p50_ms"],
            p99_ms=clients["p99_ms"],
            max_ms=clients["max_ms"],
            scheduler=(cpu_s - before[2]) / seconds,
            workers=(workers["cpu_s"] - before[0]) / seconds,
            clients=(clients["cpu_s"] - before[1]) / seconds,
            memory_mib=self._daemon.memory_mib(),
        )


@contextmanager
def started(seconds: float) -> Iterator[Bench]:
    """Everything up, with model ``i`` deployed on engine ``i``; ``seconds`` per level."""
    with ExitStack() as stack:
        daemon, folder = stack.enter_context(scheduler_daemon())
        flags = ("--scheduler", daemon.address, "--listen", f"unix:{folder / 'w'}")
        workers = LineProcess("benchmarks.load_workers", *flags)
        stack.callback(workers.close)
        asyncio.run(_deploy(daemon.address))
        yield Bench(daemon, workers, seconds)


async def _deploy(address: str) -> None:
    connection = Connection(address)
    try:
        for number in range(ENGINES):
            spec = ModelSpec(f"model{number}", "/")
            await connection.deploy(spec, node_ids=[f"node{number}"])
    finally:
        await connection.close()
