"""Requests with their arrival times, as read from a file or drawn."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path

from aegaeon_scheduler.simulator.errors import InputError
from aegaeon_scheduler.simulator.tables import parse_count, read_rows

HEADER = ["Request Time", "Model Name", "Input Length", "Output Length"]
_TIME = re.compile(r"(\d+):([0-5]\d):([0-5]\d(?:\.\d+)?)")
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a workload; lengths in tokens."""

    time_ns: int
    model: str
    input_tokens: int
    output_tokens: int


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


def draw_workload(
    models: int, rate: float, seconds: float, lengths: Items[Arrival], seed: int
) -> list[Arrival]:
    """Poisson arrivals at ``rate`` requests/s per model, with lengths drawn from ``lengths``."""
    if models < 1 or rate <= 0 or seconds <= 0:
        raise InputError(
            f"{models} models, {rate} requests/s, {seconds} s: all of them must be positive"
        )
    arrivals = []
    for index in range(models):
        # One stream per model, so that a larger workload contains the smaller one.
        draw = random.Random(f"{seed}/{index}")
        time = draw.expovariate(rate)
        while time < seconds:
            like = draw.choice(lengths)
            arrivals.append(
                Arrival(
                    round(time * _SECOND),
                    f"synth_model_{index}",
                    like.input_tokens,
                    like.output_tokens,
                )
            )
            time += draw.expovariate(rate)
    return sorted(arrivals, key=lambda arrival: arrival.time_ns)
