"""Requests with their arrival times, as a file has them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from aegaeon_scheduler.simulator.catalog import DATA
from aegaeon_scheduler.simulator.errors import InputError
from aegaeon_scheduler.simulator.tables import parse_count, read_rows

HEADER = ["Request Time", "Model Name", "Input Length", "Output Length"]
_TIME = re.compile(r"(\d+):([0-5]\d):([0-5]\d(?:\.\d+)?)")
_SECOND = 1_000_000_000
_SHIPPED = DATA / "workloads"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a workload; lengths in tokens."""

    time_ns: int
    model: str
    input_tokens: int
    output_tokens: int


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


def read_workload(path: Path) -> list[Arrival]:
    """Requests of a CSV file in order of time; raises `InputError` that names file and line."""
    arrivals = []
    for line, (time, model, inputs, outputs) in read_rows(path, HEADER):
        match = _TIME.fullmatch(time)
        if match is None:
            raise InputError.at(path, line, f"Request Time is {time!r}; it must be HH:MM:SS.sss")
        hours, minutes, seconds = match.groups()
        since = int(hours) * 3600 + int(minutes) * 60
        if not model:
            raise InputError.at(path, line, "Model Name is empty")
        arrivals.append(
            Arrival(
                since * _SECOND + round(float(seconds) * _SECOND),
                model,
                parse_count(path, line, "Input Length", inputs),
                parse_count(path, line, "Output Length", outputs),
            )
        )
    if not arrivals:
        raise InputError(f"{path}: no requests")
    return sorted(arrivals, key=lambda arrival: arrival.time_ns)
