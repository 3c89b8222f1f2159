"""A simulated worker keeps the contract of turns, and its times are those of its device."""

from __future__ import annotations

from dataclasses import replace

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.values import StopConditions, TurnEnd
from aegaeon_scheduler.simulator.catalog import H800, read_shapes
from aegaeon_scheduler.simulator.machines import Machines
from aegaeon_scheduler.simulator.worker import SimulatedWorker


def worker(prefetch: bool = True) -> SimulatedWorker:
    device = replace(H800, prefetch=prefetch)
    shapes = {shape.name: shape for shape in read_shapes(device)}
    return Machines(device, shapes, 1, 1).workers()[0]


def add(subject: SimulatedWorker, handle: int, model: str, count: int) -> None:
    stop = StopConditions(count, 0, (), (), True, 1 << 20)
    subject.take(commands.AddSequence(1, handle, model, bytes(100), (), stop))


def run(subject: SimulatedWorker, until_turns_end: int = 1) -> list[tuple[int, events.Event]]:
    """Let a worker run until so many turns have ended; what happened, and when."""
    now_ns, seen = 0, []
    while until_turns_end:
        event = subject.go_on(now_ns)
        if event is None:
            now_ns = subject.due_ns
            event = subject.finish_phase(now_ns)
        else:
            until_turns_end -= 1
        seen.append((now_ns, event))
    return seen


def test_a_switch_takes_the_bytes_over_the_link() -> None:
    subject = worker()
    add(subject, 1, "Qwen2.5-7B", 2)
    subject.take(commands.QueueTurn(1, 1, "Qwen2.5-7B", (1,), 0, ""))
    seen = run(subject)
    time_ns, started = seen[0]
    packed = subject.shapes["Qwen2.5-7B"].packed_bytes
    assert started == events.TurnStarted(1, 1, True, time_ns, packed, 0, 0)
    assert time_ns == round(packed / 32e9 * 1e9)
    ended = seen[-1][1]
    assert isinstance(ended, events.TurnEnded)
    assert (ended.reason, ended.steps) == (TurnEnd.COMPLETED, 2)


def test_a_quota_ends_a_turn_at_the_first_token_boundary_after_it() -> None:
    subject = worker()
    add(subject, 1, "Qwen2.5-7B", 1_000)
    subject.take(commands.QueueTurn(1, 1, "Qwen2.5-7B", (1,), 100_000_000, ""))
    ended = run(subject)[-1][1]
    assert isinstance(ended, events.TurnEnded)
    assert ended.reason is TurnEnd.QUOTA
    assert 100_000_000 <= ended.elapsed_ns < 110_000_000
    assert subject.sequences[1].remaining == 1_000 - ended.steps


def test_prefetched_weights_cost_nothing_when_their_turn_begins() -> None:
    times = []
    for prefetch in (True, False):
        subject = worker(prefetch)
        add(subject, 1, "Qwen2.5-7B", 100)
        add(subject, 2, "Yi-1.5-9B", 1)
        subject.take(commands.QueueTurn(1, 1, "Qwen2.5-7B", (1,), 0, "Yi-1.5-9B"))
        subject.take(commands.QueueTurn(1, 2, "Yi-1.5-9B", (2,), 0, ""))
        starts = [e for _, e in run(subject, 2) if isinstance(e, events.TurnStarted)]
        times.append(starts[1].switch_time_ns)
    assert times == [0, round(17_658_814_464 / 32e9 * 1e9)]
