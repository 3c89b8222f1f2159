"""Operators see what was expected beside what was measured."""

from __future__ import annotations

import pytest

from aegaeon.v1 import cluster_pb2
from tests.scheduler.conftest import Harness
from tests.scheduler.requests import generate_request
from tests.scheduler.test_generate import collect


async def test_the_snapshot_tells_expected_and_measured_step_times(scheduler: Harness) -> None:
    before = (await scheduler.runtime()).engines[0].estimates
    assert [(e.model, e.measurements, e.measured_step_time_ns) for e in before] == [("m", 0, 0)]
    assert before[0].step_time_ns > 0
    await collect(scheduler, generate_request((1,), 100, "m"))
    (after,) = (await scheduler.runtime()).engines[0].estimates
    step_ns = int(scheduler.workers[0].settings.step_s * 1e9)
    assert after.measured_step_time_ns == step_ns
    assert after.expected_step_time_ns == pytest.approx(step_ns, rel=0.1)
    assert after.step_time_ns == pytest.approx(step_ns, rel=0.1)
    assert (after.sequences, after.measurements >= 60, after.step_error < 0.1) == (1, True, True)


async def test_events_of_turns_tell_expected_and_measured_times(scheduler: Harness) -> None:
    call = scheduler.cluster.WatchEvents(cluster_pb2.WatchEventsRequest())
    await call.initial_metadata()
    await collect(scheduler, generate_request((1,), 50, "m"))
    turns: list[cluster_pb2.TurnChanged] = []
    async for message in call:
        if message.event.HasField("turn"):
            turns.append(message.event.turn)
        if turns and turns[-1].change == cluster_pb2.TurnChanged.CHANGE_ENDED:
            break
    call.cancel()
    assert [turn.expected_step_time_ns > 0 for turn in turns] == [True] * 3
    assert turns[1].expected_switch_time_ns > 0
    assert turns[2].steps == 50
