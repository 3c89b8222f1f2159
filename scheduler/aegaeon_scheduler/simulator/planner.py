"""How many engines a demand needs: bisection over their number, simulated."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from aegaeon_scheduler.simulator.catalog import Device
from aegaeon_scheduler.simulator.errors import InputError
from aegaeon_scheduler.simulator.policies import least_engines_per_node, parse_policies
from aegaeon_scheduler.simulator.scenario import Scenario
from aegaeon_scheduler.simulator.sweep import Hardware

#: At the knee, a tenth more engines gain less than this share of deadlines.
KNEE_GAIN = 0.01
#: A doubling that gains less than this is the last one: what is missing is not engines.
_LEAST_GAIN = 0.001
_SECOND = 1e9


@dataclass(frozen=True, slots=True)
class Sample:
    """Attainment with one number of engines, in each of the scenarios."""

    engines: int
    nodes: int
    shares: tuple[float, ...]
    busy: float
    switching: float

    @property
    def mean(self) -> float:
        """Over the scenarios."""
        return sum(self.shares) / len(self.shares)

    @property
    def lowest(self) -> float:
        """Of the scenarios."""
        return min(self.shares)

    @property
    def highest(self) -> float:
        """Of the scenarios."""
        return max(self.shares)


@dataclass(frozen=True, slots=True)
class Need:
    """Fewest engines that hold a share of deadlines; None if no simulated number does."""

    target: float
    on_average: int | None
    in_every_scenario: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What one policy needs. ``samples`` are by number of engines."""

    policy: str
    samples: Items[Sample]
    needs: Items[Need]
    knee: int | None


@dataclass(slots=True)
class Planner:
    """One policy on more or fewer engines of a device; nodes are equal and as few as possible."""

    device: Device
    scenarios: Items[Scenario]
    policy: str
    engines_per_node: int = 8
    #: More engines than these are not tried.
    most: int = 512
    _samples: dict[int, Sample] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("engines per node", self.engines_per_node), ("engines", self.most)):
            if value < 1:
                raise InputError(f"at most {value} {name}; at least 1 must be allowed")

    def plan(self, targets: Items[float]) -> Plan:
        """Needs for each target, and the knee; raises `InputError` for a target outside (0, 1)."""
        for target in targets:
            if not 0 < target < 1:
                raise InputError(f"a target is {target}; it must be between 0 and 1")
        sizes = list(self._sizes())
        self._reach(sizes, max(targets))
        needs = [
            Need(target, self._least(sizes, target, False), self._least(sizes, target, True))
            for target in sorted(targets)
        ]
        knee = self._settle_knee(sizes)
        for share in (0.5, 0.75):  # for the picture: what fewer engines would do
            self._sample(sizes[bisect_left(sizes, share * (needs[0].on_average or sizes[-1]))])
        return Plan(
            self.policy, [sample for _, sample in sorted(self._samples.items())], needs, knee
        )

    def _sizes(self) -> Iterator[int]:
        """Numbers of engines that equal nodes can have."""
        for engines in range(1, self.most + 1):
            nodes = -(-engines // self.engines_per_node)
            if engines % nodes == 0 and engines // nodes >= least_engines_per_node(self.policy):
                yield engines

    def _reach(self, sizes: list[int], target: float) -> None:
        """Double the engines, from half of the work, until every scenario holds the target."""
        at = min(bisect_left(sizes, load(self.scenarios[0]) / 2), len(sizes) - 1)
        before = 0.0
        while (sample := self._sample(sizes[at])).lowest < target and at < len(sizes) - 1:
            if sample.mean > 0.5 and sample.mean - before < _LEAST_GAIN:
                return
            before = sample.mean
            at = min(bisect_left(sizes, 2 * sizes[at]), len(sizes) - 1)

    def _least(self, sizes: list[int], target: float, everywhere: bool) -> int | None:
        """Bisection; attainment grows with engines, but for noise."""

        def holds(engines: int) -> bool:
            sample = self._sample(engines)
            return (sample.lowest if everywhere else sample.mean) >= target

        low, high = 0, bisect_left(sizes, max(self._samples))
        if not holds(sizes[high]):
            return None
        while low < high:
            # What has been simulated narrows the range for nothing.
            known = [i for i in range(low, high) if sizes[i] in self._samples]
            middle = min(known, key=lambda i: abs(i - (low + high) / 2), default=(low + high) // 2)
            if holds(sizes[middle]):
                high = middle
            else:
                low = middle + 1
        return sizes[high]

    def _settle_knee(self, sizes: list[int]) -> int | None:
        """The knee, with both of its neighbours simulated."""
        while True:
            known = sorted(self._samples)
            found = knee([self._samples[size] for size in known])
            if found is None:
                if known[-1] == sizes[-1]:
                    return None
                self._sample(sizes[bisect_left(sizes, min(1.1 * known[-1], sizes[-1]))])
                continue
            at = sizes.index(found)
            around = [size for size in sizes[max(0, at - 1) : at + 2] if size not in self._samples]
            if not around:
                return found
            self._sample(around[0])

    def _sample(self, engines: int) -> Sample:
        if engines not in self._samples:
            nodes = -(-engines // self.engines_per_node)
            hardware = Hardware(self.device, nodes, engines)
            found = [hardware.simulate(self.policy, scenario) for scenario in self.scenarios]
            count = len(found)
            self._samples[engines] = Sample(
                engines,
                nodes,
                tuple(result.token_attainment for result in found),
                sum(result.busy_share for result in found) / count,
                sum(result.switching_share for result in found) / count,
            )
        return self._samples[engines]


def plan_all(
    policies: str,
    device: Device,
    scenarios: Items[Scenario],
    targets: Items[float],
    engines_per_node: int,
    most: int,
) -> list[Plan]:
    """A plan of each policy, by names with commas between."""
    planners = [
        Planner(device, scenarios, policy, engines_per_node, most)
        for policy in parse_policies(policies)
    ]
    return [planner.plan(targets) for planner in planners]


def load(scenario: Scenario) -> float:
    """Engines that decode steps of batch 1 alone would keep busy while requests arrive."""
    busy_ns = sum(
        scenario.shapes[arrival.model].profile.decode_ns(1, 0) * arrival.output_tokens
        for arrival in scenario.arrivals
    )
    first, last = scenario.arrivals[0].time_ns, scenario.arrivals[-1].time_ns
    return busy_ns / max(last - first, _SECOND)


def knee(samples: Items[Sample]) -> int | None:
    """Fewest engines of a tenth more of which gain less than `KNEE_GAIN`, there and beyond.

    Between samples, attainment is taken to grow evenly. None if the last samples still gain more.
    """
    found = None
    for less, more in zip(samples[-2::-1], samples[:0:-1], strict=True):
        gain = (more.mean - less.mean) / (more.engines - less.engines)
        if gain * less.engines / 10 >= KNEE_GAIN:
            break
        found = less.engines
    return found
