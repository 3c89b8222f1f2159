"""A mix file: models with their own traffic and objectives, as YAML or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aegaeon.config.yaml_source import parse_yaml
from aegaeon.errors import ConfigError
from aegaeon_scheduler.simulator.catalog import DATA, Device, ModelShape, read_shapes
from aegaeon_scheduler.simulator.demand import Lengths, Traffic, lengths_of, scale_lengths
from aegaeon_scheduler.simulator.errors import InputError
from aegaeon_scheduler.simulator.objective import Objective
from aegaeon_scheduler.simulator.workload import find_workload, read_arrivals

#: Where lengths come from unless an entry says otherwise.
DEFAULT_LENGTHS = "synth-80-0.1-1.0-1.0"


def kind_of(model: str) -> str:
    """The entry of a mix that a model comes from."""
    head, _, number = model.rpartition("-")
    return head if head and number.isdigit() else model


class MixEntry(BaseModel):
    """Models of one kind: ``name``, or ``name-0``, ``name-1``, ... if ``count`` is more than 1."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(min_length=1)
    #: A model of `catalog`, which gives sizes and step times.
    profile: str
    count: int = Field(default=1, ge=1)
    #: Requests per second of each model.
    rate: float = Field(gt=0)
    #: Mean lengths in tokens; absent means those of ``workload``.
    input_tokens: float | None = Field(default=None, ge=1)
    output_tokens: float | None = Field(default=None, ge=1)
    #: A workload, by name or path, whose lengths are drawn.
    workload: str = DEFAULT_LENGTHS
    ttft_s: float = Field(default=10.0, gt=0)
    tpot_s: float = Field(default=0.1, gt=0)

    def traffic(self, device: Device, data: Path) -> Iterator[Traffic]:
        """One per model."""
        shape = _shape(self.profile, device, data)
        lengths = scale_lengths(_lengths(self.workload), self.input_tokens, self.output_tokens)
        objective = Objective.of_seconds(self.ttft_s, self.tpot_s)
        for index in range(self.count):
            name = f"{self.name}-{index}" if self.count > 1 else self.name
            yield Traffic(name, shape, self.rate, lengths, objective)


def read_mix(path: Path, device: Device, data: Path = DATA) -> list[Traffic]:
    """The models of a file; raises `InputError` that names file, line and key.

    YAML has a list under ``models``, whose entries have the fields of `MixEntry`; CSV has them as
    columns, and an empty field means the default.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    entries = _csv_entries(path, text) if path.suffix == ".csv" else _yaml_entries(path, text)
    found: dict[str, Traffic] = {}
    for line, entry in entries:
        try:
            models = list(entry.traffic(device, data))
        except ConfigError as error:
            raise InputError.at(path, line, str(error)) from error
        for traffic in models:
            if traffic.model in found:
                raise InputError.at(path, line, f"there are two models named {traffic.model!r}")
            found[traffic.model] = traffic
    if not found:
        raise InputError(f"{path}: no models")
    return list(found.values())


def _yaml_entries(path: Path, text: str) -> Iterator[tuple[int, MixEntry]]:
    document = parse_yaml(text, str(path))
    value = document.value
    if not isinstance(value, dict) or value.keys() != {"models"}:
        raise InputError.at(path, 1, "a mix is a mapping with the one key 'models'")
    if not isinstance(value["models"], list):
        raise InputError.at(path, document.line(("models",)) or 1, "models must be a list")

    for index, entry in enumerate(value["models"]):

        def line_of(*key: str | int, index: int = index) -> int:
            return document.line(("models", index, *key)) or 1

        yield line_of(), _entry(path, entry, line_of)


def _csv_entries(path: Path, text: str) -> Iterator[tuple[int, MixEntry]]:
    reader = csv.DictReader(io.StringIO(text), restkey="more", restval="")
    unknown = [name for name in reader.fieldnames or [] if name not in MixEntry.model_fields]
    if unknown:
        error = InputError.unknown("column", unknown[0], MixEntry.model_fields)
        raise InputError.at(path, 1, str(error))
    for row in reader:
        line = reader.line_num
        if "more" in row:
            raise InputError.at(path, line, "more fields than columns")
        given = {name: value for name, value in row.items() if value}
        yield line, _entry(path, given, lambda *key, line=line: line)


def _entry(path: Path, values: Any, line_of: Callable[..., int]) -> MixEntry:
    try:
        return MixEntry.model_validate(values)
    except ValidationError as error:
        # A mistyped key also misses the right one; what was written tells more.
        problem = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    key = problem["loc"][:1]
    name = str(key[0]) if key else "an entry"
    if problem["type"] == "extra_forbidden":
        text = str(InputError.unknown("key", name, MixEntry.model_fields))
    elif problem["type"] == "missing":
        text = f"{name} is required"
    else:
        text = f"{name}: {problem['msg']}, got {problem['input']!r}"
    raise InputError.at(path, line_of(*key), text)


@cache
def _shape(profile: str, device: Device, data: Path) -> ModelShape:
    (shape,) = read_shapes(device, [profile], data)
    return shape


@cache
def _lengths(workload: str) -> Lengths:
    return lengths_of(read_arrivals(find_workload(workload)))
