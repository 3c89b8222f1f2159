"""Workloads as CSV: when a request of which model arrives, and how many tokens go in and out."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

from aegaeon.errors import ConfigError

COLUMNS = ("Request Time", "Model Name", "Input Length", "Output Length")


@dataclass(frozen=True)
class WorkloadEntry:
    """One request to come."""

    #: Seconds since the workload began.
    arrival_s: float
    model: str
    input_tokens: int
    output_tokens: int


def read_workload(path: str | os.PathLike[str]) -> list[WorkloadEntry]:
    """Read a file with the columns of ``COLUMNS``, times as ``H:M:S.f``, in order of arrival.

    Raises ConfigError naming file and line.
    """
    source = Path(path)
    try:
        with source.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file, restval="")
            if missing := set(COLUMNS) - set(rows.fieldnames or ()):
                raise ConfigError(f"{source}: has no column {', '.join(sorted(missing))}")
            entries = [_entry(row, f"{source}:{rows.line_num}") for row in rows]
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from error
    return sorted(entries, key=lambda entry: entry.arrival_s)


def _entry(row: dict[str, str], where: str) -> WorkloadEntry:
    try:
        time, model, input_tokens, output_tokens = (row[column] for column in COLUMNS)
        hours, minutes, seconds = time.split(":")
        entry = WorkloadEntry(
            arrival_s=int(hours) * 3600 + int(minutes) * 60 + float(seconds),
            model=model,
            input_tokens=int(input_tokens),
            output_tokens=int(output_tokens),
        )
    except ValueError as error:
        raise ConfigError(f"{where}: {error}; expected {', '.join(COLUMNS)}") from error
    if min(entry.input_tokens, entry.output_tokens) < 1:
        raise ConfigError(f"{where}: lengths must be at least 1")
    return entry
