"""A competitor's speed, round by round, and the check that its tokens are right."""

from __future__ import annotations

import statistics
from typing import Protocol

from benchmarks.report import Figure
from benchmarks.workload import Run, Workload

#: Prompts that run one after another in each round; all of them would take minutes.
SINGLE_PROMPTS = 2


class Competitor(Protocol):
    """Something that generates."""

    name: str

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Run:
        """Tokens of every prompt, greedy, end-of-sequence ignored."""


class Timings:
    """Tokens per second of one competitor, one entry per round."""

    def __init__(self, competitor: Competitor) -> None:
        self.competitor = competitor
        self.batch: list[float] = []
        self.single: list[float] = []

    def run_round(self, workload: Workload, expected: list[list[int]]) -> None:
        """Everything at once, then some prompts alone; raises when tokens differ."""
        run = self.competitor.generate(workload.prompts, workload.new_tokens)
        check_tokens(self.competitor.name, run.tokens, expected)
        self.batch.append(run.tokens_per_s)
        runs = [
            self.competitor.generate([prompt], workload.new_tokens)
            for prompt in workload.prompts[:SINGLE_PROMPTS]
        ]
        tokens = [run.tokens[0] for run in runs]
        check_tokens(self.competitor.name, tokens, expected[:SINGLE_PROMPTS])
        self.single.append(sum(map(len, tokens)) / sum(run.seconds for run in runs))

    @property
    def batch_rate(self) -> float:
        """Median with all prompts at once."""
        return statistics.median(self.batch)

    @property
    def single_rate(self) -> float:
        """Median with one prompt."""
        return statistics.median(self.single)

    def figures(self) -> list[Figure]:
        """Both rates."""
        name = self.competitor.name
        return [
            Figure(f"{name}: all prompts at once", "tokens/s", self.batch),
            Figure(f"{name}: one prompt", "tokens/s", self.single),
        ]


def check_tokens(name: str, tokens: list[list[int]], expected: list[list[int]]) -> None:
    """Raise when a competitor did other work than was asked for."""
    for number, (got, wanted) in enumerate(zip(tokens, expected, strict=True)):
        if got != wanted:
            raise AssertionError(f"{name}: prompt {number} got {got}, expected {wanted}")
