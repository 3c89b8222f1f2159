"""The experiments behind docs/simulation: each part is one picture and one table."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

from aegaeon_scheduler.simulator.catalog import DATA, H800
from aegaeon_scheduler.simulator.errors import InputError
from aegaeon_scheduler.simulator.experiment import (
    MODELS,
    RATE,
    SCALE,
    EqualModels,
    find_lengths,
    find_shapes,
    replayed,
)
from aegaeon_scheduler.simulator.mix import DEFAULT_LENGTHS, read_mix
from aegaeon_scheduler.simulator.objective import DEFAULT_OBJECTIVE
from aegaeon_scheduler.simulator.policies import DEFAULT_POLICY, POLICIES
from aegaeon_scheduler.simulator.scenario import Scenario
from aegaeon_scheduler.simulator.sweep import BOUND, Hardware, Point, capacity, lines_of
from aegaeon_scheduler.simulator.workload import shipped_workloads

_SEED = 1
#: Attainment whose x is the capacity, and below which a line is not followed further.
_SHARE = 0.9
_FLOOR = 0.5

_ALL = (*POLICIES, BOUND)
#: Without what differs from the default policy by its order of turns only.
_MAIN = tuple(name for name in _ALL if name != "round-robin")

_FAST_LINK = Hardware(replace(H800, link_bytes_per_s=55e9))
_SLOW_LINK = Hardware(H800)


@dataclass(frozen=True, slots=True)
class Part:
    """One experiment; with ``step``, capacities along the axis are searched to that precision."""

    name: str
    title: str
    hardware: Hardware | Callable[[Scenario], Hardware]
    x_label: str
    scenarios: Callable[[], Iterator[Scenario]]
    #: A scenario between the given ones.
    between: Callable[[float], Scenario] | None = None
    step: float = 0.0
    policies: Items[str] = _ALL

    def points(self) -> Iterator[Point]:
        """Every policy, and the bound, until it has fallen far below the capacity."""
        scenarios = list(self.scenarios())
        for policy in self.policies:
            found: list[Point] = []
            for scenario in scenarios:
                found.append(self._point(policy, scenario))
                yield found[-1]
                if self.between is not None and found[-1].attainment < _FLOOR:
                    break
            yield from self._refined(policy, found)

    def _refined(self, policy: str, found: list[Point]) -> Iterator[Point]:
        """Points where the line falls below the share, until they are one step apart."""
        while self.between is not None:
            (line,) = lines_of(found).values()
            x = capacity(line, _SHARE)
            if not x:
                return
            right = bisect_left([each for each, _ in line], x)
            low, high = line[right - 1][0], line[right][0]
            if high - low <= self.step * 1.01:
                return
            # Where the line is expected to cross, if that is not next to what is known.
            near = round(x / self.step) * self.step
            if not low + self.step / 2 < near < high - self.step / 2:
                near = round((low + high) / 2 / self.step) * self.step
            found.append(self._point(policy, self.between(round(near, 6))))
            yield found[-1]

    def _point(self, policy: str, scenario: Scenario) -> Point:
        given = self.hardware
        hardware = given if isinstance(given, Hardware) else given(scenario)
        if policy == BOUND:
            return Point(scenario.title, scenario.x, BOUND, hardware.bound(scenario))
        return hardware.point(scenario, policy)


def find_parts(names: str) -> list[Part]:
    """Parts by name, comma-separated, or all of them; raises `InputError`."""
    known = {part.name: part for part in _parts()}
    if names == "all":
        return list(known.values())
    for name in names.split(","):
        if name not in known:
            raise InputError.unknown("part of the suite", name, known)
    return [known[name] for name in names.split(",")]


def part_names() -> list[str]:
    """All parts, in the order of the page."""
    return [part.name for part in _parts()]


def _parts() -> Iterator[Part]:
    shapes, lengths = find_shapes("", H800), find_lengths(DEFAULT_LENGTHS)
    equal = EqualModels(shapes, lengths, DEFAULT_OBJECTIVE, 120.0, _SEED)
    yield Part(
        "workloads",
        "The published workloads",
        _SLOW_LINK,
        MODELS,
        lambda: iter(replayed(shipped_workloads(), shapes, DEFAULT_OBJECTIVE).scenarios),
    )
    yield _models("models", "Models at 0.1 requests/s, link of 32 GB/s", equal, _SLOW_LINK)
    yield _models("models-55", "Models at 0.1 requests/s, link of 55 GB/s", equal, _FAST_LINK)
    yield _rates(replace(equal, seconds=60.0))
    for factor in (0.5, 0.3):
        limits = DEFAULT_OBJECTIVE.scaled(factor)
        title = f"Limits of {limits.ttft_ns / 1e9:g} s and {limits.tpot_ns / 1e9:g} s"
        tight = replace(equal, objective=limits)
        yield _models(f"limits-{factor:g}", title, tight, _SLOW_LINK, _MAIN)
    yield _mix()
    unhinted = Hardware(replace(H800, prefetch=False))
    yield _models("no-prefetch", "Without prefetching weights", equal, unhinted, _MAIN)
    yield _scale(equal)


def _models(
    name: str, title: str, equal: EqualModels, hardware: Hardware, policies: Items[str] = _ALL
) -> Part:
    grid = (16, 40, 56, 72, 88, 104, 128, 152, 176, 200, 240, 288, 344)

    def between(x: float) -> Scenario:
        return equal.scenario(x, 0.1)

    def scenarios() -> Iterator[Scenario]:
        return map(between, grid)

    return Part(name, title, hardware, MODELS, scenarios, between, 1.0, policies)


def _rates(equal: EqualModels) -> Part:
    grid = (0.1, 0.2, 0.4, 0.6, 0.8, 1.2, 1.6, 2.0, 2.4, 2.8, 3.2, 4.0)

    def between(x: float) -> Scenario:
        return equal.scenario(40, x, RATE)

    title = "Rate at 40 models, link of 32 GB/s"
    return Part("rates", title, _SLOW_LINK, RATE, lambda: map(between, grid), between, 0.05, _MAIN)


def _mix() -> Part:
    demand = read_mix(DATA / "mix.yaml", H800)
    grid = (0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)

    def between(x: float) -> Scenario:
        scaled = [replace(traffic, rate=traffic.rate * x) for traffic in demand]
        return Scenario.drawn(f"mix at {x:g} times its rates", x, scaled, 120.0, _SEED)

    title = "A mix of models with rates and limits of their own"
    return Part("mix", title, _SLOW_LINK, SCALE, lambda: map(between, grid), between, 0.05, _MAIN)


def _scale(equal: EqualModels) -> Part:
    """A fixed number of requests on more and more engines, five models each."""
    sizes = ((80, 40.0), (320, 10.0), (1280, 2.5), (5000, 0.64))

    def scenarios() -> Iterator[Scenario]:
        for models, seconds in sizes:
            yield replace(equal, seconds=seconds).scenario(models, 0.1)

    def hardware(scenario: Scenario) -> Hardware:
        engines = round(scenario.x / 5)
        return Hardware(H800, engines // 8, engines)

    title = "Time to decide, by size of the cluster"
    return Part("scale", title, hardware, MODELS, scenarios, policies=(DEFAULT_POLICY,))
