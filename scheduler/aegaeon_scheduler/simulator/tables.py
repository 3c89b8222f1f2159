"""CSV files with a fixed header, and folders for them; errors name the file and the line."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from aegaeon_scheduler.simulator.errors import InputError


def read_rows(path: Path, header: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of every row; raises `InputError` for anything malformed."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            found = next(reader, None)
            if found != header:
                raise InputError.at(path, 1, f"the header must be {','.join(header)!r}")
            for row in reader:
                if len(row) != len(header):
                    raise InputError.at(
                        path, reader.line_num, f"{len(row)} fields instead of {len(header)}"
                    )
                yield reader.line_num, row
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a CSV file in UTF-8: {error}") from error


def parse_count(path: Path, line: int, name: str, text: str, least: int = 1) -> int:
    """A whole number of at least ``least``."""
    try:
        value = int(text)
    except ValueError:
        raise InputError.at(path, line, f"{name} is {text!r}; it must be a whole number") from None
    if value < least:
        raise InputError.at(path, line, f"{name} is {value}; it must be at least {least}")
    return value


def parse_seconds(path: Path, line: int, name: str, text: str) -> float:
    """A positive, finite number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value < 1e9:
        raise InputError.at(path, line, f"{name} is {text!r}; it must be a positive number")
    return value


def open_folder(path: Path) -> None:
    """Make a folder for results, unless it is there; raises `InputError` when it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
