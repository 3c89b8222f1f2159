"""What became of the requests and of the devices' time."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path

from aegaeon_scheduler.simulator.workload import Arrival

_COLUMNS = (
    "policy",
    "arrival_s",
    "model",
    "input_tokens",
    "output_tokens",
    "tokens_on_time",
    "first_token_s",
    "last_token_s",
    "longest_gap_s",
    "refused",
)


@dataclass(frozen=True, slots=True)
class Objective:
    """Deadlines: token k, from 0, at arrival + TTFT + k * TPOT; both in ns."""

    ttft_ns: int = 10_000_000_000
    tpot_ns: int = 100_000_000


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request; times in ns, -1 before they are known."""

    arrival: Arrival
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

    def add_token(self, now_ns: int, objective: Objective) -> None:
        """Record the next token."""
        assert not self.ended, "a token after the end"
        deadline = self.arrival.time_ns + objective.ttft_ns + self.tokens * objective.tpot_ns
        self.tokens_on_time += now_ns <= deadline
        if self.tokens:
            self.longest_gap_ns = max(self.longest_gap_ns, now_ns - self.last_token_ns)
        else:
            self.first_token_ns = now_ns
        self.last_token_ns = now_ns
        self.tokens += 1

    def within(self, objective: Objective) -> bool:
        """The first token and every gap between tokens meet the limits."""
        if self.refused or not self.tokens:
            return False
        ttft_ns = self.first_token_ns - self.arrival.time_ns
        return ttft_ns <= objective.ttft_ns and self.longest_gap_ns <= objective.tpot_ns


@dataclass(slots=True, eq=False)
class SimulationResult:
    """Everything measured in one simulation; shares are of all engines' time."""

    policy: str
    objective: Objective
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
        return sum(record.within(self.objective) for record in self.records) / len(self.records)

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


def write_requests(path: Path, result: SimulationResult) -> None:
    """One CSV row per request, in order of arrival; times in seconds since the workload's start."""
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(_COLUMNS)
        for record in result.records:
            arrival = record.arrival
            times = (record.first_token_ns, record.last_token_ns, record.longest_gap_ns)
            out.writerow(
                [
                    result.policy,
                    f"{arrival.time_ns / 1e9:.3f}",
                    arrival.model,
                    arrival.input_tokens,
                    arrival.output_tokens,
                    record.tokens_on_time,
                    *("" if time < 0 else f"{time / 1e9:.3f}" for time in times),
                    int(record.refused),
                ]
            )
