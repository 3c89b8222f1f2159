"""What no policy can exceed: work conservation with free switches and free prefills.

The argument. A pass of a model takes at least ``a + sum(c_i)`` over the sequences that it decodes:
``a`` is paid once, ``c_i`` by each. Token k of a request can be on time only if the request was in
k + 1 passes between its arrival and that token's deadline. So a policy that misses few tokens needs
many passes, but the engines have only so much time until any given moment.

Let every missed deadline cost 1, and every nanosecond of an engine a price. Then the least cost of
a model's requests is a linear program: passes cover windows that begin at a request's arrival and
end at a token's deadline, or tokens are missed. A solution of its dual bounds it from below:
weights of windows, such that those around any moment add up to at most ``price * a``, and those of
a request to at most ``1 - price * c_i``. Chains of disjoint windows are such weights; so are
several chains with a part of the weight each. What the requests cost at least, minus the price of
all the time there is, is missed for certain, whatever the price.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import pairwise

from aegaeon_scheduler.simulator.catalog import ModelShape
from aegaeon_scheduler.simulator.machines import Machines
from aegaeon_scheduler.simulator.objective import Objective, Objectives
from aegaeon_scheduler.simulator.workload import Arrival

#: Chains of windows at most; with more, each has less weight.
_CHAINS = 5
#: Moments tried, as quantiles of last deadlines.
_MOMENTS = (0.4, 0.6, 0.75, 0.88, 0.96, 1.0)
#: Prices tried first, in missed tokens per pass; then some around the best one.
_PRICES = tuple(0.4 * 1.6**step for step in range(12))
_FINER = (0.8, 0.9, 1.12, 1.26)


def attainment_bound(arrivals: Items[Arrival], machines: Machines, objectives: Objectives) -> float:
    """Upper bound of the share of tokens that can meet their deadlines."""
    by_model: dict[str, list[Arrival]] = {}
    for arrival in arrivals:
        by_model.setdefault(arrival.model, []).append(arrival)
    ends = sorted(_last_due_ns(arrival, objectives.of(arrival.model)) for arrival in arrivals)
    start_ns = min(arrival.time_ns for arrival in arrivals)
    engines = machines.nodes * machines.engines_per_node
    missed = 0.0
    for moment in sorted({ends[round(share * (len(ends) - 1))] for share in _MOMENTS}):
        needs = [
            _Need.until(moment, requests, machines.shapes[model], objectives.of(model))
            for model, requests in by_model.items()
        ]
        time_ns = (moment - start_ns) * engines
        missed = max(missed, _least_missed(needs, time_ns))
    return 1.0 - min(1.0, missed / sum(arrival.output_tokens for arrival in arrivals))


def _least_missed(needs: Items[_Need], time_ns: int) -> float:
    """Tokens that are missed for certain when there is so much time of engines."""

    def missed(price: float) -> float:
        return sum(need.least_cost(price) for need in needs) - price * time_ns

    pass_ns = max(line.shared_ns for need in needs for line in need.lines)
    best = max((factor / pass_ns for factor in _PRICES), key=missed)
    return max(missed(best * factor) for factor in (1.0, *_FINER))


@dataclass(frozen=True, slots=True)
class _Line:
    """A pass takes at least ``shared_ns``, and ``each_ns`` more per sequence that it decodes."""

    shared_ns: float
    each_ns: float


@dataclass(frozen=True, slots=True)
class _Request:
    """Tokens of a request that are due by some moment; times in ns."""

    time_ns: int
    due: int
    #: Reading the KV of its prompt, in every pass that decodes it.
    context_ns: float


@dataclass(frozen=True, slots=True)
class _Need:
    """One model's requests, as far as their tokens are due by some moment."""

    requests: Items[_Request]
    lines: Items[_Line]
    #: Disjoint windows each: a request, and how many of its tokens are due by the window's end.
    chains: Items[Items[tuple[_Request, int]]]

    @classmethod
    def until(
        cls, moment: int, requests: Items[Arrival], shape: ModelShape, objective: Objective
    ) -> _Need:
        """What has to be done by a moment."""
        found = []
        for each in sorted(requests, key=lambda arrival: arrival.time_ns):
            due = min(each.output_tokens, _due_by(moment - each.time_ns, objective))
            if due:
                context_ns = each.input_tokens * shape.profile.context_token_ns
                found.append(_Request(each.time_ns, due, context_ns))
        return cls(found, _lines(shape), list(_chains(found, objective)))

    def least_cost(self, price: float) -> float:
        """Missed tokens and priced time together, whatever is done; ``price`` is per ns."""
        return max(self._least_cost(price, line) for line in self.lines)

    def _least_cost(self, price: float, line: _Line) -> float:
        # The first token of a request comes from its prefill, which is free.
        cost = sum(
            (request.due - 1) * min(1.0, price * (line.each_ns + request.context_ns))
            for request in self.requests
        )
        best = 0.0
        for count in range(1, len(self.chains) + 1):
            share = price * line.shared_ns / count
            covered = 0.0
            for chain in self.chains[:count]:
                for request, tokens in chain:
                    spare = 1.0 - price * (line.each_ns + request.context_ns)
                    covered += tokens * max(0.0, min(spare, share))
            best = max(best, covered)
        return cost + best


def _chains(requests: list[_Request], objective: Objective) -> Iterator[list[tuple[_Request, int]]]:
    """Disjoint windows with the most tokens; then the most of the requests left; and so on."""
    left = requests
    for _ in range(_CHAINS):
        chain = _heaviest_chain(left, objective)
        if not chain:
            return
        yield chain
        used = {id(request) for request, _ in chain}
        left = [request for request in left if id(request) not in used]


def _heaviest_chain(requests: list[_Request], objective: Objective) -> list[tuple[_Request, int]]:
    """Disjoint windows, at most one per request, with the most tokens in all."""
    times = [request.time_ns for request in requests]
    count = len(requests)
    # By request: most tokens from there on, those of its own window, and who follows that.
    best: list[tuple[int, int, int]] = [(0, 0, count)] * (count + 1)
    for index in range(count - 1, -1, -1):
        request = requests[index]
        taken = (best[index + 1][0], 0, index + 1)
        whole_ns = request.time_ns + objective.ttft_ns + (request.due - 1) * objective.tpot_ns
        last = bisect_left(times, whole_ns, lo=index)
        if request.due + best[last][0] > taken[0]:
            taken = (request.due + best[last][0], request.due, last)
        first = bisect_left(times, request.time_ns + objective.ttft_ns, lo=index + 1)
        for follower in range(first, last):
            tokens = _due_by(times[follower] - request.time_ns, objective)
            if tokens + best[follower][0] > taken[0]:
                taken = (tokens + best[follower][0], tokens, follower)
        best[index] = taken
    chain = []
    index = 0
    while index < count:
        _, tokens, follower = best[index]
        if tokens:
            chain.append((requests[index], tokens))
        index = follower
    return chain


def _lines(shape: ModelShape) -> list[_Line]:
    """Lines below the measured times of passes: edges of their lower convex hull.

    Without those at which a pass of no sequences would give time back.
    """
    profile = shape.profile
    # A pass that only prefills decodes none.
    corners = [(0, min(profile.prefill_ns(1), profile.decode_ns(1, 0)))]
    for batch in profile.decode[0]:
        point = (batch, profile.decode_ns(batch, 0))
        while len(corners) > 1 and _slope(corners[-1], point) <= _slope(corners[-2], corners[-1]):
            corners.pop()
        corners.append(point)
    lines = []
    for start, end in pairwise(corners):
        each_ns = _slope(start, end)
        shared_ns = start[1] - start[0] * each_ns
        if shared_ns >= 0:
            lines.append(_Line(shared_ns, each_ns))
    return lines


def _slope(start: tuple[int, float], end: tuple[int, float]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])


def _due_by(passed_ns: int, objective: Objective) -> int:
    """How many tokens are due by a time after the arrival, of a request without end."""
    return max(0, (passed_ns - objective.ttft_ns) // objective.tpot_ns + 1)


def _last_due_ns(arrival: Arrival, objective: Objective) -> int:
    tokens = arrival.output_tokens - 1
    return arrival.time_ns + objective.ttft_ns + tokens * objective.tpot_ns
