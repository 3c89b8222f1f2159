"""Whether one more request leaves an engine able to keep the objectives it has promised."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from aegaeon.errors import ResourceExhaustedError
from aegaeon_scheduler.core.dues import Dues
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.routing import choose_engine
from aegaeon_scheduler.core.sequence import Sequence
from aegaeon_scheduler.core.state import State

#: What is due is looked at over these multiples of the request's TTFT; what ends or arrives later
#: cannot be known.
_HORIZONS = (1, 2)
_LEAST_RETRY_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class Demand:
    """What one model's sequences on an engine need together; a step serves all of them."""

    #: When the first of their next tokens is due, and the last of all their tokens; 0 where they
    #: leave with their first.
    first_due_ns: int
    last_due_ns: int
    tpot_ns: int
    step_ns: float
    #: Prompts that have not been computed.
    prefill_ns: float
    #: Cost of one turn, and its length at most.
    switch_ns: float
    turn_ns: int

    def work_ns(self, until_ns: int) -> float:
        """Engine time for all tokens that are due by then."""
        if self.first_due_ns > until_ns:
            return 0.0
        last_ns = max(min(until_ns, self.last_due_ns), self.first_due_ns)
        steps_ns = ((last_ns - self.first_due_ns) // self.tpot_ns + 1) * self.step_ns
        turns = math.ceil((steps_ns + self.prefill_ns) / self.turn_ns)
        return steps_ns + self.prefill_ns + turns * self.switch_ns


def choose(state: State, sequence: Sequence, now_ns: int) -> Engine | None:
    """The engine that is to keep a request's objectives; None while no replica is READY.

    Raises the error that refuses it when that engine could not.
    """
    engine = choose_engine(state, sequence)
    if engine is not None:
        check(engine, sequence, state.config.max_quota_ns, now_ns)
    return engine


def check(engine: Engine, sequence: Sequence, max_quota_ns: int, now_ns: int) -> None:
    """Raise the error that refuses a request, unless everything that is then due can be done.

    The demand of a set of deadlines: what is due by a time, this request included, must fit into
    the time until then, whatever the order. Each sequence counts with its permitted length.
    """
    ttft_ns = sequence.slo.ttft_ns
    demands = list(_demands(engine, sequence, max_quota_ns))
    excess_ns = max(
        sum(d.work_ns(now_ns + times * ttft_ns) for d in demands) - times * ttft_ns
        for times in _HORIZONS
    )
    if excess_ns <= 0:
        return
    retry_ms = math.ceil(max(excess_ns, _LEAST_RETRY_NS) / 1e6)
    raise ResourceExhaustedError(
        f"with this request engine {engine.engine_id} would be {excess_ns / 1e9:.2f} s behind the "
        f"deadlines of its requests (TTFT of this one: {ttft_ns / 1e9:g} s); try again in "
        f"{retry_ms} ms, or ask for a longer TTFT",
        metadata={"limit": "ttft_slo_ns", "value": ttft_ns, "retry_after_ms": retry_ms},
    )


def _demands(engine: Engine, sequence: Sequence, max_quota_ns: int) -> Iterator[Demand]:
    found: dict[str, list[Dues]] = {sequence.model: [Dues.of([sequence])]}
    for turn in engine.turns:
        if turn.members:
            found.setdefault(turn.model, []).append(Dues.of(turn.members.values()))
    for model, queue in engine.queues.items():
        if queue.waiting:
            found.setdefault(model, []).append(queue.dues())
    estimator = engine.estimator
    for model, parts in found.items():
        prompt_tokens = sum(part.prompt_tokens for part in parts)
        yield Demand(
            min(part.earliest_ns for part in parts),
            0 if model in engine.hands_off else max(part.end_ns for part in parts),
            min(part.tpot_ns for part in parts),
            engine.step_ns(model),
            estimator.prefill_ns(model, prompt_tokens) if prompt_tokens else 0.0,
            estimator.switch_ns(model) if len(found) > 1 else 0.0,
            max_quota_ns,
        )
