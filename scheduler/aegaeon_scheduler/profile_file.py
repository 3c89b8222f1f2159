"""Files of measured step times, which seed the estimates and the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from aegaeon_scheduler.core.estimation.profile_row import ProfileRow
from aegaeon_scheduler.simulator.tables import parse_count, parse_seconds, read_rows

_HEADER = [
    "device",
    "model",
    "input_tokens",
    "batch_size",
    "prefill_seconds",
    "decode_step_seconds",
]


def read_profile(path: Path) -> Iterator[ProfileRow]:
    """Rows in file order; raises `InputError` naming file and line for a malformed one."""
    for line, row in read_rows(path, _HEADER):
        yield ProfileRow(
            device=row[0],
            model=row[1],
            input_tokens=parse_count(path, line, "input_tokens", row[2]),
            batch_size=parse_count(path, line, "batch_size", row[3]),
            prefill_ns=parse_seconds(path, line, "prefill_seconds", row[4]) * 1e9,
            decode_ns=parse_seconds(path, line, "decode_step_seconds", row[5]) * 1e9,
        )
