"""Requests with their arrival times, as a file has them."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path

from aegaeon.workload import read_workload
from aegaeon_scheduler.simulator.catalog import DATA
from aegaeon_scheduler.simulator.errors import InputError

_SECOND = 1_000_000_000
_SHIPPED = DATA / "workloads"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a workload; lengths in tokens."""

    time_ns: int
    model: str
    input_tokens: int
    output_tokens: int
    #: Of its prompt, where prompts have beginnings in common; without any, it has none with others.
    tokens: Items[int] = ()


def shipped_workloads() -> list[str]:
    """Names of the workloads that come with the simulator, by models, then by rate."""
    names = [path.stem for path in _SHIPPED.glob("*.csv")]
    return sorted(names, key=lambda name: [float(part) for part in name.split("-")[1:3]])


def find_workload(name: str) -> Path:
    """The file of a shipped workload, or the file at a path; raises `InputError`."""
    if name in shipped_workloads():
        return _SHIPPED / f"{name}.csv"
    path = Path(name)
    if path.suffix != ".csv" and not path.exists():
        raise InputError.unknown("workload", name, shipped_workloads())
    return path


def read_arrivals(path: Path) -> list[Arrival]:
    """Requests of a CSV file in order of time; raises `ConfigError` that names file and line."""
    return [
        Arrival(
            round(entry.arrival_s * _SECOND), entry.model, entry.input_tokens, entry.output_tokens
        )
        for entry in read_workload(path)
    ]
