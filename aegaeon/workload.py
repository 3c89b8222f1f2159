"""Workloads as CSV: when a request of which model arrives, and how many tokens go in and out."""

from __future__ import annotations

import csv
import os
import re
from dataclasses import dataclass
from pathlib import Path

from aegaeon.errors import ConfigError

COLUMNS = ("Request Time", "Model Name", "Input Length", "Output Length")
_TIME = re.compile(r"(\d+):([0-5]?\d):([0-5]?\d(?:\.\d+)?)", re.ASCII)


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
            rows = csv.DictReader(file, restkey="", strict=True)
            if missing := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
                raise ConfigError(f"{source}:1: has no column {', '.join(missing)}")
            entries = [_entry(row, f"{source}:{rows.line_num}") for row in rows]
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{source}: is not a CSV file in UTF-8: {error}") from error
    if not entries:
        raise ConfigError(f"{source}: has no requests")
    return sorted(entries, key=lambda entry: entry.arrival_s)


def _entry(row: dict[str, str | None], where: str) -> WorkloadEntry:
    if "" in row or None in row.values():
        raise ConfigError(f"{where}: has more or fewer fields than the header")
    time, model, input_tokens, output_tokens = (row[column] or "" for column in COLUMNS)
    match = _TIME.fullmatch(time)
    if match is None:
        raise ConfigError(f"{where}: Request Time is {time!r}; it must be HH:MM:SS.sss")
    if not model:
        raise ConfigError(f"{where}: Model Name is empty")
    hours, minutes, seconds = match.groups()
    return WorkloadEntry(
        arrival_s=int(hours) * 3600 + int(minutes) * 60 + float(seconds),
        model=model,
        input_tokens=_length(input_tokens, f"{where}: Input Length"),
        output_tokens=_length(output_tokens, f"{where}: Output Length"),
    )


def _length(text: str, what: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{what} is {text!r}; it must be a whole number of at least 1")
    return int(text)
