"""A simulated worker keeps the contract of turns, and its times are those of its device."""

from __future__ import annotations

from dataclasses import replace

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.values import FinishReason, KvPlace, StopConditions, TurnEnd, TurnStage
from aegaeon_scheduler.simulator.catalog import H800, read_shapes
from aegaeon_scheduler.simulator.machines import Machines
from aegaeon_scheduler.simulator.worker import SimulatedWorker


def worker(prefetch: bool = True) -> SimulatedWorker:
    device = replace(H800, prefetch=prefetch)
    shapes = {shape.name: shape for shape in read_shapes(device)}
    return Machines(device, shapes, 1, 1).workers()[0]


def add(
    subject: SimulatedWorker, handle: int, model: str, count: int, kv: KvPlace | None = None
) -> None:
    stop = StopConditions(count, 0, (), (), True, 1 << 20)
    generated = (0,) if kv else ()
    prompt = range(100 * handle, 100 * handle + 100)  # nothing in common with others
    subject.take(commands.AddSequence(1, handle, model, prompt, generated, stop, kv), 0)


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
    subject.take(commands.QueueTurn(1, 1, "Qwen2.5-7B", (1,), 0, ""), 0)
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
    subject.take(commands.QueueTurn(1, 1, "Qwen2.5-7B", (1,), 100_000_000, ""), 0)
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
        subject.take(commands.QueueTurn(1, 1, "Qwen2.5-7B", (1,), 0, "Yi-1.5-9B"), 0)
        subject.take(commands.QueueTurn(1, 2, "Yi-1.5-9B", (2,), 0, ""), 0)
        starts = [e for _, e in run(subject, 2) if isinstance(e, events.TurnStarted)]
        times.append(starts[1].switch_time_ns)
    assert times == [0, round(17_658_814_464 / 32e9 * 1e9)]


def test_a_prefill_turn_hands_off_beside_what_runs_next() -> None:
    subject = worker()
    add(subject, 1, "Qwen2.5-7B", 9)
    add(subject, 2, "Qwen2.5-7B", 1)
    turn = commands.QueueTurn(1, 1, "Qwen2.5-7B", (1, 2), 0, "", TurnStage.PREFILL)
    subject.take(turn, 0)
    last_step_ns = [at for at, event in run(subject) if isinstance(event, events.StepDone)][-1]
    assert not subject.sequences  # the other one had its only token
    [(due_ns, handed)] = subject.notices
    copy_ns = round(100 * subject.shapes["Qwen2.5-7B"].kv_token_bytes / 32e9 * 1e9)
    assert handed == events.SequenceHandedOff(1, 1, KvPlace(100), copy_ns)
    assert due_ns == last_step_ns + copy_ns


def test_kv_that_was_handed_off_is_copied_and_not_computed() -> None:
    subject = worker()
    add(subject, 1, "Qwen2.5-7B", 9, KvPlace(100))
    subject.take(commands.QueueTurn(1, 1, "Qwen2.5-7B", (1,), 0, ""), 0)
    seen = run(subject)
    assert isinstance(seen[0][1], events.TurnStarted)
    assert seen[0][1].kv_bytes == 100 * subject.shapes["Qwen2.5-7B"].kv_token_bytes
    steps = [event for _, event in seen if isinstance(event, events.StepDone)]
    assert len(steps) == 8
    assert not any(step.prefill_tokens for step in steps)
    [(_, imported)] = subject.notices
    assert isinstance(imported, events.SequenceImported)
    assert imported.imported_tokens == 100


def test_a_cancelled_sequence_is_confirmed() -> None:
    subject = worker()
    add(subject, 1, "Qwen2.5-7B", 9)
    subject.take(commands.CancelSequences(1, (1, 7)), 5)
    [(due_ns, ended)] = subject.notices
    assert isinstance(ended, events.StepDone)
    assert (due_ns, ended.handles, ended.finish_reasons) == (5, [1], [FinishReason.CANCELLED])
