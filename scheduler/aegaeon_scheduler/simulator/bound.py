"""What no policy can exceed: work conservation with free switches and free prefills."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as Items

from aegaeon_scheduler.simulator.machines import Machines
from aegaeon_scheduler.simulator.objective import Objective, Objectives
from aegaeon_scheduler.simulator.workload import Arrival


def attainment_bound(arrivals: Items[Arrival], machines: Machines, objectives: Objectives) -> float:
    """Upper bound of the share of tokens that can meet their deadlines.

    A sequence gets one token per step of its model, between its arrival and its last deadline.
    Sequences of a model whose windows do not overlap share no step, so the model needs at least as
    many steps as the tokens of the heaviest such set, each at least as long as one of batch 1. All
    engines together have the time until the last deadline. What does not fit must be left out; a
    token left out saves one step at most.
    """
    by_model: dict[str, list[Arrival]] = {}
    for arrival in arrivals:
        by_model.setdefault(arrival.model, []).append(arrival)
    needed_ns = longest_ns = 0.0
    for model, requests in by_model.items():
        step_ns = machines.shapes[model].profile.decode_ns(1, 0)
        longest_ns = max(longest_ns, step_ns)
        needed_ns += step_ns * _heaviest_disjoint(requests, objectives.of(model))
    tokens = sum(arrival.output_tokens for arrival in arrivals)
    ends = [_end_ns(arrival, objectives.of(arrival.model)) for arrival in arrivals]
    span_ns = max(ends) - min(arrival.time_ns for arrival in arrivals)
    missing_ns = needed_ns - span_ns * machines.nodes * machines.engines_per_node
    return 1.0 - min(1.0, max(0.0, missing_ns) / (longest_ns * tokens))


def _heaviest_disjoint(requests: list[Arrival], objective: Objective) -> int:
    """Most tokens of requests whose windows are pairwise disjoint."""
    ordered = sorted(requests, key=lambda arrival: _end_ns(arrival, objective))
    ends = [_end_ns(arrival, objective) for arrival in ordered]
    best = [0]
    for index, arrival in enumerate(ordered):
        before = bisect_right(ends, arrival.time_ns, hi=index)
        best.append(max(best[-1], best[before] + arrival.output_tokens))
    return best[-1]


def _end_ns(arrival: Arrival, objective: Objective) -> int:
    tokens = arrival.output_tokens - 1
    return arrival.time_ns + objective.ttft_ns + tokens * objective.tpot_ns
