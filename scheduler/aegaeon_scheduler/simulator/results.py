"""What became of the requests and of the devices' time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from aegaeon_scheduler.simulator.objective import DEFAULT_OBJECTIVE, Objective
from aegaeon_scheduler.simulator.workload import Arrival


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request; times in ns, -1 before they are known."""

    arrival: Arrival
    objective: Objective = DEFAULT_OBJECTIVE
    tokens: int = 0
    tokens_on_time: int = 0
    first_token_ns: int = -1
    last_token_ns: int = -1
    longest_gap_ns: int = 0
    refused: bool = False

    @property
    def ended(self) -> bool:
        """All tokens are there, or none will come."""
        return self.refused or self.tokens == self.arrival.output_tokens

    def add_token(self, now_ns: int) -> None:
        """Record the next token."""
        objective = self.objective
        assert not self.ended, "a token after the end"
        deadline = self.arrival.time_ns + objective.ttft_ns + self.tokens * objective.tpot_ns
        self.tokens_on_time += now_ns <= deadline
        if self.tokens:
            self.longest_gap_ns = max(self.longest_gap_ns, now_ns - self.last_token_ns)
        else:
            self.first_token_ns = now_ns
        self.last_token_ns = now_ns
        self.tokens += 1

    @property
    def within_limits(self) -> bool:
        """The first token and every gap between tokens meet the limits."""
        if self.refused or not self.tokens:
            return False
        objective = self.objective
        ttft_ns = self.first_token_ns - self.arrival.time_ns
        return ttft_ns <= objective.ttft_ns and self.longest_gap_ns <= objective.tpot_ns


@dataclass(slots=True, eq=False)
class SimulationResult:
    """Everything measured in one simulation; shares are of all engines' time."""

    policy: str
    records: list[RequestRecord]
    engines: int
    duration_ns: int = 0
    busy_ns: int = 0
    switching_ns: int = 0
    switches: int = 0
    steps: int = 0
    _wanted: int = field(init=False)

    def __post_init__(self) -> None:
        self._wanted = sum(record.arrival.output_tokens for record in self.records)

    @property
    def token_attainment(self) -> float:
        """Share of all requested tokens that met their deadlines."""
        return sum(record.tokens_on_time for record in self.records) / self._wanted

    @property
    def request_attainment(self) -> float:
        """Share of requests whose TTFT and every gap met the limits."""
        return sum(record.within_limits for record in self.records) / len(self.records)

    @property
    def worst_tenth(self) -> float:
        """Mean token attainment of the tenth of models that do worst: how even a policy is."""
        shares = sorted(self.token_attainment_by(lambda model: model).values())
        worst = shares[: -(-len(shares) // 10)]
        return sum(worst) / len(worst)

    def token_attainment_by(self, key: Callable[[str], str]) -> dict[str, float]:
        """Token attainment of groups of models, which ``key`` names."""
        wanted: Counter[str] = Counter()
        on_time: Counter[str] = Counter()
        for record in self.records:
            group = key(record.arrival.model)
            wanted[group] += record.arrival.output_tokens
            on_time[group] += record.tokens_on_time
        return {group: on_time[group] / count for group, count in sorted(wanted.items())}

    @property
    def busy_share(self) -> float:
        """Share of time in steps."""
        return self.busy_ns / self._total_ns

    @property
    def switching_share(self) -> float:
        """Share of time in which steps waited for weights or KV."""
        return self.switching_ns / self._total_ns

    @property
    def idle_share(self) -> float:
        """The rest."""
        return 1.0 - self.busy_share - self.switching_share

    @property
    def _total_ns(self) -> int:
        return max(1, self.duration_ns * self.engines)
