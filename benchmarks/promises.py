"""What this release promises on CPUs, against what was measured."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from benchmarks.boundary import BoundaryTimes
from benchmarks.model_switch import SwitchTimes
from benchmarks.report import Target
from benchmarks.timings import Timings


@dataclass(frozen=True)
class StackTimes:
    """Everything measured in one run; ``idle`` is a share of one core."""

    peers: list[Timings]
    stack: Timings
    boundary: BoundaryTimes
    switches: SwitchTimes
    idle: float


def targets(times: StackTimes) -> list[Target]:
    """Ratios of medians and medians of differences; the best peer counts."""
    stack, peers = times.stack, times.peers
    batch = stack.batch_rate / max(peer.batch_rate for peer in peers)
    single = stack.single_rate / max(peer.single_rate for peer in peers)
    boundary_ms = statistics.median(times.boundary.single_ms)
    boundary_percent = statistics.median(times.boundary.batch_share) * 100
    switch_ms = statistics.median(times.switches.beyond_copy_ms)
    idle_percent = times.idle * 100
    return [
        Target("all prompts at once, against the best peer", batch, "x", 1.3, at_least=True),
        Target("one prompt, against the best peer", single, "x", 1.1, at_least=True),
        Target("process boundary, per token of one stream", boundary_ms, "ms", 2, at_least=False),
        Target("process boundary, all prompts at once", boundary_percent, "%", 5, at_least=False),
        Target("model switch, beyond copying its bytes", switch_ms, "ms", 10, at_least=False),
        Target("idle daemons, of one core", idle_percent, "%", 1, at_least=False),
    ]
