"""Turns that follow one another without a pause of the device."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aegaeon_worker.engine import commands, events, step_issuer, turn_runner
from aegaeon_worker.engine.events import TurnEndReason
from aegaeon_worker.engine.issued_step import IssuedStep
from aegaeon_worker.engine.turn_runner import TurnRunner
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.reference import reference_tokens
from tests.worker.models.tiny import VOCAB_SIZE, make_checkpoint

NEW_TOKENS = 12
LONG_NS = 10**12


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "qwen3"
    return make_checkpoint("qwen3", folder, 2)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in (5, 17, 40)]


@pytest.fixture(scope="module")
def expected(path: Path, prompts: list[list[int]]) -> list[list[int]]:
    return reference_tokens(path, prompts, NEW_TOKENS)


@pytest.fixture
def shm_dir(shm_dir: Path, ahead: None) -> Path:
    return shm_dir


class Journal:
    """Steps of models as they are issued and waited for; issuing waits for the gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: list[tuple[str, str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self._names: dict[int, str] = {}
        issue, wait = step_issuer.issue_step, IssuedStep.wait

        def issue_step(model, *rest):  # type: ignore[no-untyped-def]
            assert self.gate.wait(60)
            step = issue(model, *rest)
            self._names[id(step)] = model.loaded.spec.name
            self.entries.append(("issue", model.loaded.spec.name))
            return step

        def wait_for(step):  # type: ignore[no-untyped-def]
            self.entries.append(("wait", self._names[id(step)]))
            return wait(step)

        monkeypatch.setattr(turn_runner, "issue_step", issue_step)
        monkeypatch.setattr(IssuedStep, "wait", wait_for)


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> Journal:
    return Journal(monkeypatch)


@pytest.fixture
def engine(shm_dir: Path, path: Path, prompts: list[list[int]]) -> Iterator[EngineHarness]:
    """With two models on the device."""
    with EngineHarness(shm_dir) as engine:
        for name in ("a", "b"):
            engine.load(path, name)
            engine.generate(name, prompts[:1], 2)
            engine.wait_for(events.TurnEnded)
        yield engine


def test_the_next_turn_is_issued_before_the_last_step_of_the_one_before_is_waited_for(
    engine: EngineHarness,
    journal: Journal,
    prompts: list[list[int]],
    expected: list[list[int]],
) -> None:
    journal.gate.clear()
    members = {name: [engine.add(name, prompt, NEW_TOKENS) for prompt in prompts] for name in "ab"}
    for _ in range(NEW_TOKENS + 2):
        for name, handles in members.items():
            engine.turn(name, handles, 1)
    journal.gate.set()
    engine.wait_ended([*members["a"], *members["b"]])
    for handles in members.values():
        assert [engine.tokens(handle) for handle in handles] == expected
    issued = [name for what, name in journal.entries if what == "issue"]
    changes = [n for n in range(1, len(issued)) if issued[n] != issued[n - 1]]
    assert len(changes) > NEW_TOKENS
    waits = 0
    for what, _ in journal.entries[:-1]:
        waits += what == "wait"
        # The device always has a step under way that has not been waited for.
        assert waits < len(issued)
    places = [n for n, (what, _) in enumerate(journal.entries) if what == "issue"]
    for change in changes:
        before = journal.entries[: places[change]]
        under_way = sum(1 if what == "issue" else -1 for what, _ in before)
        assert under_way == 1, f"the device had nothing to do ahead of step {change}"


def test_what_is_told_of_turns_never_overlaps(
    engine: EngineHarness, journal: Journal, prompts: list[list[int]]
) -> None:
    journal.gate.clear()
    begun = len(engine.log)
    members = {name: [engine.add(name, prompt, NEW_TOKENS) for prompt in prompts] for name in "ab"}
    wanted = [engine.turn(name, members[name], 1) for _ in range(NEW_TOKENS) for name in "ab"]
    journal.gate.set()
    while engine.wait_for(events.TurnEnded).turn_id != wanted[-1]:
        pass
    running, ended, told = 0, [], 0
    for event in engine.log[begun:]:
        match event:
            case events.TurnStarted():
                assert running == 0
                running = event.turn_id
                assert event.switch_time_ns >= 0
                assert not event.switched
            case events.StepBatch():
                assert event.turn_id == running
                told += event.step_time_ns > 0
            case events.TurnEnded():
                assert event.turn_id == running
                ended.append(event.turn_id)
                running = 0
    assert ended == wanted
    assert told >= len(wanted) // 2


def test_a_turn_that_is_over_hears_of_the_next_one_before_it_waits_for_the_device(
    engine: EngineHarness,
    journal: Journal,
    prompts: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = engine.add("a", prompts[0], NEW_TOKENS)
    second = engine.add("b", prompts[1], NEW_TOKENS)
    engine.parts.thread.stop()  # driven from here on, step by step
    driven = engine.parts._driven
    monkeypatch.setattr(TurnRunner, "left_ns", lambda runner: LONG_NS if runner.awaited else 0)
    journal.entries.clear()
    driven.handle(commands.QueueTurn(101, "a", [first], 1, None))
    for _ in range(3):
        driven.step()
    assert journal.entries == [("issue", "a")]
    assert driven.spare_s > 0
    driven.handle(commands.QueueTurn(102, "b", [second], 1, None))
    assert driven.spare_s == 0
    driven.step()
    assert journal.entries == [("issue", "a"), ("issue", "b"), ("wait", "a")]
    monkeypatch.setattr(TurnRunner, "left_ns", lambda runner: 0)
    while driven._turns:
        driven.step()
    while (ended := engine.wait_for(events.TurnEnded)).turn_id != 102:
        pass
    assert ended.reason is TurnEndReason.QUOTA
    driven._memory.audit()


def test_a_request_that_joins_at_the_last_step_goes_on_behind_it(
    engine: EngineHarness,
    journal: Journal,
    prompts: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = engine.add("a", prompts[0], 1)
    second = engine.add("a", prompts[1], 1)
    engine.parts.thread.stop()
    driven = engine.parts._driven
    monkeypatch.setattr(TurnRunner, "left_ns", lambda runner: LONG_NS if runner.awaited else 0)
    journal.entries.clear()
    driven.handle(commands.QueueTurn(101, "a", [first], 0, None))
    for _ in range(3):
        driven.step()
    assert driven.spare_s > 0
    driven.handle(commands.JoinTurn(101, [second]))
    driven.step()
    assert journal.entries == [("issue", "a"), ("issue", "a"), ("wait", "a")]
    monkeypatch.setattr(TurnRunner, "left_ns", lambda runner: 0)
    while driven._turns:
        driven.step()
    driven._memory.audit()
