"""From names and numbers, as a command line has them, to what is simulated."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from pathlib import Path

from aegaeon_scheduler.simulator.catalog import (
    DATA,
    DEVICES,
    TESTBED_MODELS,
    Device,
    ModelShape,
    read_shapes,
)
from aegaeon_scheduler.simulator.demand import (
    Lengths,
    Traffic,
    lengths_of,
    same_traffic,
    scale_lengths,
)
from aegaeon_scheduler.simulator.errors import InputError
from aegaeon_scheduler.simulator.mix import read_mix
from aegaeon_scheduler.simulator.objective import Objective
from aegaeon_scheduler.simulator.scenario import Scenario
from aegaeon_scheduler.simulator.sweep import Hardware
from aegaeon_scheduler.simulator.workload import find_workload, read_arrivals

MODELS = "models"
RATE = "requests/s per model"
SCALE = "multiple of the mix's rates"

_LEAST_SECONDS = 60.0
_LEAST_REQUESTS = 300


@dataclass(frozen=True, slots=True)
class Experiment:
    """Scenarios along one axis, smallest first."""

    x_label: str
    scenarios: Items[Scenario]


def find_device(name: str, link_gbytes: float | None = None, prefetch: bool = True) -> Device:
    """A device by name, with another host link in GB/s if one is given; raises `InputError`."""
    if name not in DEVICES:
        raise InputError.unknown("device", name, DEVICES)
    device = replace(DEVICES[name], prefetch=prefetch)
    if link_gbytes is None:
        return device
    if not 0 < link_gbytes < 1e6:
        raise InputError(f"the link is {link_gbytes} GB/s; it must be positive")
    return replace(device, link_bytes_per_s=link_gbytes * 1e9)


def parse_numbers(name: str, text: str) -> list[float]:
    """Positive numbers with commas between, in ascending order; raises `InputError`."""
    try:
        found = sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise InputError(f"{name} is {text!r}; it must be numbers with commas between") from None
    if not all(0 < number < 1e9 for number in found):
        raise InputError(f"{name} is {text!r}; every number must be positive")
    return found


def find_hardware(
    device: str, nodes: int, engines: int, link_gbytes: float | None = None, prefetch: bool = True
) -> Hardware:
    """Engines of one type, see `find_device`."""
    return Hardware(find_device(device, link_gbytes, prefetch), nodes, engines)


def find_shapes(names: str, device: Device, data: Path = DATA) -> list[ModelShape]:
    """Models by name, comma-separated; those of the published testbed when there are none."""
    return read_shapes(device, names.split(",") if names else TESTBED_MODELS, data)


def find_lengths(
    workload: str, input_mean: float | None = None, output_mean: float | None = None
) -> Lengths:
    """Lengths of a workload, by name or path, stretched to other means if there are any."""
    return scale_lengths(
        lengths_of(read_arrivals(find_workload(workload))), input_mean, output_mean
    )


def replayed(names: Items[str], shapes: Items[ModelShape], objective: Objective) -> Experiment:
    """Workloads by name or path."""
    paths = [find_workload(name) for name in names]
    scenarios = [
        Scenario.replayed(path.stem, read_arrivals(path), shapes, objective) for path in paths
    ]
    return Experiment(MODELS, sorted(scenarios, key=lambda scenario: scenario.x))


@dataclass(frozen=True, slots=True)
class EqualModels:
    """Drawn workloads of models that differ in their shapes only."""

    shapes: Items[ModelShape]
    lengths: Lengths
    objective: Objective
    seconds: float
    seed: int

    def varied(self, models: str, rates: str) -> Experiment:
        """With one or more numbers of models, or one or more rates, comma-separated."""
        counts, each = parse_numbers("--models", models), parse_numbers("--rates", rates)
        if len(counts) > 1 and len(each) > 1:
            raise InputError("several --models and several --rates; vary one of them")
        label = RATE if len(each) > 1 else MODELS
        return Experiment(
            label, [self.scenario(count, rate, label) for count in counts for rate in each]
        )

    def scenario(self, models: float, rate: float, x_label: str = MODELS) -> Scenario:
        """One number of models at one rate."""
        if models != int(models):
            raise InputError(f"there are {models:g} models; it must be a whole number")
        return Scenario.drawn(
            f"{models:g} models at {rate:g} requests per s",
            rate if x_label == RATE else models,
            same_traffic(int(models), rate, self.shapes, self.lengths, self.objective),
            self.seconds,
            self.seed,
        )


def repeated(demand: Items[Traffic], seconds: float | None, seeds: int) -> list[Scenario]:
    """The same demand, drawn several times; without ``seconds``, for 60 s or some 300 requests."""
    if seeds < 1:
        raise InputError(f"there are {seeds} seeds; at least 1 is needed")
    if seconds is None:
        rate = sum(traffic.rate for traffic in demand)
        seconds = max(_LEAST_SECONDS, _LEAST_REQUESTS / rate) if rate > 0 else _LEAST_SECONDS
    return [
        Scenario.drawn(f"draw {seed}", len(demand), demand, seconds, seed)
        for seed in range(1, seeds + 1)
    ]


def mixed(
    path: Path, device: Device, data: Path, scales: str, seconds: float, seed: int
) -> Experiment:
    """A mix of models, with all of their rates multiplied by each of ``scales``."""
    demand = read_mix(path, device, data)
    scenarios = [
        Scenario.drawn(
            f"{path.stem} at {scale:g} times its rates",
            scale,
            [replace(traffic, rate=traffic.rate * scale) for traffic in demand],
            seconds,
            seed,
        )
        for scale in parse_numbers("--scales", scales)
    ]
    return Experiment(SCALE, scenarios)
