"""What is done to a cluster in a round."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos.cluster import LEASE_MS, Cluster
from tests.chaos.nursery import SHM_FULL, SLOW_DISK


@dataclass(frozen=True)
class Fault:
    """Something to do at a time; its text is for the record."""

    at_s: float
    text: str
    do: Callable[[], Awaitable[None]]


def draw(chance: random.Random, cluster: Cluster) -> list[Fault]:
    """One to three faults within the first second of a round."""
    kinds = [
        (6, _kill_worker),
        (2, _stop_worker),
        (2, _end_worker),
        (4, _kill_scheduler),
        (1, _pause_scheduler),
        (1, _end_scheduler),
        (3, _cut_wire),
        (2, _freeze_wire),
        (2, _slow_wire),
        (1, _fill_shared_memory),
        (1, _slow_disk),
        *([(1, _kill_gateway)] if cluster.gateway else []),
    ]
    chosen = chance.choices(
        [kind for _, kind in kinds], [weight for weight, _ in kinds], k=chance.randint(1, 3)
    )
    cluster.fleet.pause_s = chance.choice((0.0, 0.0, 0.1, 0.4))
    faults = []
    for kind in chosen:
        text, do = kind(chance, cluster)
        faults.append(Fault(round(chance.uniform(0, 0.9), 3), text, do))
    return sorted(faults, key=lambda fault: fault.at_s)


_Drawn = tuple[str, Callable[[], Awaitable[None]]]


def _signal(cluster: Cluster, name: str, number: signal.Signals) -> _Drawn:
    async def do() -> None:
        cluster.fleet.signal(name, number)

    return f"{number.name} to {name}", do


def _kill_worker(chance: random.Random, cluster: Cluster) -> _Drawn:
    return _signal(cluster, chance.choice(cluster.worker_names), signal.SIGKILL)


def _end_worker(chance: random.Random, cluster: Cluster) -> _Drawn:
    return _signal(cluster, chance.choice(cluster.worker_names), signal.SIGTERM)


def _kill_scheduler(_: random.Random, cluster: Cluster) -> _Drawn:
    return _signal(cluster, "scheduler", signal.SIGKILL)


def _end_scheduler(_: random.Random, cluster: Cluster) -> _Drawn:
    return _signal(cluster, "scheduler", signal.SIGTERM)


def _kill_gateway(_: random.Random, cluster: Cluster) -> _Drawn:
    return _signal(cluster, "gateway", signal.SIGKILL)


def _stop(cluster: Cluster, name: str, duration_s: float) -> _Drawn:
    async def do() -> None:
        cluster.fleet.signal(name, signal.SIGSTOP)
        await asyncio.sleep(duration_s)
        cluster.fleet.signal(name, signal.SIGCONT)

    return f"{name} stops for {duration_s:.2f} s", do


def _stop_worker(chance: random.Random, cluster: Cluster) -> _Drawn:
    """For less than its lease, or for longer, so that it comes back late."""
    duration_s = chance.uniform(0.1, 1.6) * LEASE_MS / 1e3
    return _stop(cluster, chance.choice(cluster.worker_names), duration_s)


def _pause_scheduler(chance: random.Random, cluster: Cluster) -> _Drawn:
    return _stop(cluster, "scheduler", chance.uniform(0.1, 1.5))


def _wire(chance: random.Random, cluster: Cluster) -> str:
    return chance.choice(list(cluster.wires.wires))


def _cut_wire(chance: random.Random, cluster: Cluster) -> _Drawn:
    name = _wire(chance, cluster)

    async def do() -> None:
        cluster.wires.cut(name)

    return f"cut {name}", do


def _freeze_wire(chance: random.Random, cluster: Cluster) -> _Drawn:
    name, duration_s = _wire(chance, cluster), chance.uniform(0.1, 2.0)

    async def do() -> None:
        cluster.wires.freeze(name, duration_s)

    return f"freeze {name} for {duration_s:.2f} s", do


def _slow_wire(chance: random.Random, cluster: Cluster) -> _Drawn:
    name, latency_s = _wire(chance, cluster), chance.uniform(0.005, 0.1)

    async def do() -> None:
        cluster.wires.slow(name, latency_s, 1.0)

    return f"slow {name} by {latency_s * 1e3:.0f} ms", do


def _with_flag(cluster: Cluster, flag: str, text: str, victim: str, duration_s: float) -> _Drawn:
    """A fault of the machine, and a worker that has to start while it lasts."""

    async def do() -> None:
        cluster.fleet.flag(flag, text)
        cluster.fleet.signal(victim, signal.SIGKILL)
        await asyncio.sleep(duration_s)
        cluster.fleet.flag(flag, None)

    return f"{flag} for {duration_s:.2f} s and SIGKILL to {victim}", do


def _fill_shared_memory(chance: random.Random, cluster: Cluster) -> _Drawn:
    victim = chance.choice(cluster.worker_names)
    return _with_flag(cluster, SHM_FULL, "", victim, chance.uniform(0.2, 0.8))


def _slow_disk(chance: random.Random, cluster: Cluster) -> _Drawn:
    victim = chance.choice(cluster.worker_names)
    return _with_flag(cluster, SLOW_DISK, "0.3", victim, chance.uniform(0.2, 0.8))
