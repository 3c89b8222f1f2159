"""What this release promises on CPUs, against what was measured."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from benchmarks.model_switch import SwitchTimes
from benchmarks.report import Target
from benchmarks.timings import Timings


@dataclass
class StackTimes:
    """One run: peers, the whole stack, its engine in process; ``idle`` is a share of one core."""

    peers: list[Timings]
    stack: Timings
    engine: Timings
    idle: float = 0.0

    @property
    def all(self) -> list[Timings]:
        """In the order in which they take turns."""
        return [*self.peers, self.stack, self.engine]


def targets(times: StackTimes, switches: SwitchTimes) -> list[Target]:
    """Ratios and differences of medians; the best peer counts."""
    stack, engine = times.stack, times.engine
    batch = stack.batch_rate / max(peer.batch_rate for peer in times.peers)
    single = stack.single_rate / max(peer.single_rate for peer in times.peers)
    boundary_ms = 1e3 / stack.single_rate - 1e3 / engine.single_rate
    boundary_share = 1 - stack.batch_rate / engine.batch_rate
    switch_ms = statistics.median(switches.switch_ms) - statistics.median(switches.copy_ms)
    return [
        Target("all prompts at once, against the best peer", batch, "x", 1.3, at_least=True),
        Target("one prompt, against the best peer", single, "x", 1.1, at_least=True),
        Target("process boundary per token, one stream", boundary_ms, "ms", 2.0, at_least=False),
        Target("process boundary, all prompts", boundary_share * 100, "%", 5.0, at_least=False),
        Target("model switch beyond copying its bytes", switch_ms, "ms", 10.0, at_least=False),
        Target("idle daemons, of one core", times.idle * 100, "%", 1.0, at_least=False),
    ]
