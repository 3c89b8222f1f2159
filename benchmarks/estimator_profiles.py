"""Estimates against the rows of a profile that they have not seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aegaeon_scheduler.core.estimation.estimator import Estimator
from aegaeon_scheduler.core.estimation.profile_row import Profile, ProfileRow
from aegaeon_scheduler.core.values import DeviceFacts
from aegaeon_scheduler.profile_file import read_profile

#: A fifth of the rows is held out, each fifth in turn.
_FOLDS = 5


@dataclass
class ProfileErrors:
    """Relative errors of rows held out, of one device."""

    models: set[str] = field(default_factory=set)
    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    #: Rows whose decode column is not the time of a step.
    several_passes: int = 0


def profile_errors(path: Path) -> dict[str, ProfileErrors]:
    """By device; every (device, model) is fitted by itself."""
    groups: dict[tuple[str, str], list[ProfileRow]] = {}
    for row in read_profile(path):
        groups.setdefault((row.device, row.model), []).append(row)
    found: dict[str, ProfileErrors] = {}
    for (device, model), rows in groups.items():
        errors = found.setdefault(device, ProfileErrors())
        errors.models.add(model)
        profile = Profile(rows)
        for row, prefill_ns, decode_ns in _foretold(device, model, rows):
            errors.prefill.append(abs(prefill_ns / row.prefill_ns - 1))
            if profile.one_pass(row):
                errors.decode.append(abs(decode_ns / row.decode_ns - 1))
            else:
                errors.several_passes += 1
    return found


def _foretold(
    device: str, model: str, rows: list[ProfileRow]
) -> Iterator[tuple[ProfileRow, float, float]]:
    """Every row with what an estimator expects of it that was seeded with the other folds."""
    facts, profile = DeviceFacts("cuda", device, 1, 1), Profile(rows)
    for fold in range(_FOLDS):
        rest = [row for index, row in enumerate(rows) if index % _FOLDS != fold]
        times = Estimator(facts, rest).times(model)
        for row in rows[fold::_FOLDS]:
            yield row, *profile.expected_ns(row, times)
