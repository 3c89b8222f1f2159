"""What scheduler and gRPC cost: the whole stack beside its engine alone, in pairs."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.timings import Competitor, check_tokens
from benchmarks.workload import Workload


@dataclass
class BoundaryTimes:
    """Milliseconds per token, one entry per pair; a pair ran within seconds of each other."""

    stack_single: list[float] = field(default_factory=list)
    engine_single: list[float] = field(default_factory=list)
    stack_batch: list[float] = field(default_factory=list)
    engine_batch: list[float] = field(default_factory=list)

    @property
    def single_ms(self) -> list[float]:
        """Per pair: what the boundary adds to a token of one stream."""
        return [s - e for s, e in zip(self.stack_single, self.engine_single, strict=True)]

    @property
    def batch_share(self) -> list[float]:
        """Per pair: the share of throughput that the boundary takes from all prompts at once."""
        return [1 - e / s for s, e in zip(self.stack_batch, self.engine_batch, strict=True)]


def measure_boundary(
    stack: Competitor,
    engine: Competitor,
    workload: Workload,
    expected: list[list[int]],
    pairs: int,
) -> BoundaryTimes:
    """Run both in turn, in changing order, so that a drifting machine favours neither."""
    times = BoundaryTimes()
    sides = [
        (stack, times.stack_single, times.stack_batch),
        (engine, times.engine_single, times.engine_batch),
    ]
    for number in range(pairs):
        prompt = number % len(workload.prompts)
        order = sides if number % 2 == 0 else sides[::-1]
        for side, single, _ in order:
            run = side.generate([workload.prompts[prompt]], workload.new_tokens)
            check_tokens(side.name, run.tokens, [expected[prompt]])
            single.append(1e3 / run.tokens_per_s)
        for side, _, batch in order:
            run = side.generate(workload.prompts, workload.new_tokens)
            check_tokens(side.name, run.tokens, expected)
            batch.append(1e3 / run.tokens_per_s)
    return times
