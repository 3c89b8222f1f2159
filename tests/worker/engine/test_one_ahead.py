"""Steps that are issued before the tokens that they go on from are known."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from aegaeon_worker.engine import commands, events, step_issuer, turn_runner
from aegaeon_worker.engine.events import FinishReason, TurnEndReason
from aegaeon_worker.engine.issued_step import IssuedStep
from aegaeon_worker.sampling.parameters import SamplingParameters
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.reference import reference_tokens
from tests.worker.models.tiny import VOCAB_SIZE, make_checkpoint

NEW_TOKENS = 24
MIB = 1 << 20


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "qwen3"
    return make_checkpoint("qwen3", folder, 2, intermediate_size=2048, num_hidden_layers=3)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(11)
    lengths = (1, 5, 16, 17, 90, 200)
    return [[rng.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def expected(path: Path, prompts: list[list[int]]) -> list[list[int]]:
    return reference_tokens(path, prompts, NEW_TOKENS)


#: One for each prompt.
PENALIZED = [
    SamplingParameters(temperature=1.0, repetition_penalty=1.3, frequency_penalty=0.5, seed=1),
    SamplingParameters(repetition_penalty=1.2),
    SamplingParameters(temperature=0.9, top_k=30, frequency_penalty=1.5, seed=3),
    SamplingParameters(temperature=1.0, top_p=0.9, seed=4),
    SamplingParameters(temperature=1.2, presence_penalty=0.8, min_p=0.01, seed=5),
    SamplingParameters(frequency_penalty=0.4, presence_penalty=-0.2),
]


@pytest.fixture(scope="module")
def sampled(
    path: Path, prompts: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> list[list[int]]:
    """What each prompt gets with its own of ``PENALIZED``, alone and step by step."""
    with EngineHarness(tmp_path_factory.mktemp("shm")) as engine:
        engine.load(path)
        outputs = []
        for prompt, sampling in zip(prompts, PENALIZED, strict=True):
            handle = engine.add("qwen3", prompt, NEW_TOKENS, sampling=sampling)
            engine.turn("qwen3", [handle])
            engine.wait_ended([handle])
            outputs.append(engine.tokens(handle))
    return outputs


@pytest.fixture
def shm_dir(tmp_path: Path, ahead: None) -> Iterator[Path]:
    yield tmp_path
    assert list(tmp_path.glob("aegaeon-*")) == [], "the worker left files behind"


class Journal:
    """Which steps were issued and which were waited for, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: list[tuple[str, int]] = []
        self.sizes: list[int] = []
        self._numbers: dict[int, int] = {}
        issue, wait = step_issuer.issue_step, IssuedStep.wait

        def issue_step(model, chunks, *rest):  # type: ignore[no-untyped-def]
            step = issue(model, chunks, *rest)
            self._numbers[id(step)] = len(self.sizes)
            self.entries.append(("issue", len(self.sizes)))
            self.sizes.append(len(chunks))
            return step

        def wait_for(step):  # type: ignore[no-untyped-def]
            self.entries.append(("wait", self._numbers[id(step)]))
            return wait(step)

        monkeypatch.setattr(turn_runner, "issue_step", issue_step)
        monkeypatch.setattr(IssuedStep, "wait", wait_for)

    def forget(self) -> None:
        """Begin anew."""
        self.entries.clear()
        self.sizes.clear()


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> Journal:
    return Journal(monkeypatch)


def test_a_step_is_waited_for_only_when_the_next_one_has_been_issued(
    path: Path, prompts: list[list[int]], expected: list[list[int]], shm_dir: Path, journal: Journal
) -> None:
    with EngineHarness(shm_dir) as engine:
        engine.load(path)
        # A first step that waits for copies goes alone.
        engine.generate("qwen3", prompts[:1], 1)
        journal.forget()
        assert engine.generate("qwen3", prompts[:2], NEW_TOKENS) == expected[:2]
    steps = NEW_TOKENS
    wanted = [("issue", 0)]
    for number in range(1, steps):
        wanted += [("issue", number), ("wait", number - 1)]
    # The length is known beforehand: no step is in vain.
    assert journal.entries == [*wanted, ("wait", steps - 1)]


def test_a_stop_is_found_one_step_late_and_nothing_of_that_step_is_told(
    path: Path, prompts: list[list[int]], expected: list[list[int]], shm_dir: Path, journal: Journal
) -> None:
    stop = expected[4][5]
    length = expected[4].index(stop) + 1
    with EngineHarness(shm_dir) as engine:
        engine.load(path)
        stopping = engine.add("qwen3", prompts[4], NEW_TOKENS, stop_ids=[stop])
        going_on = engine.add("qwen3", prompts[3], NEW_TOKENS)
        engine.turn("qwen3", [stopping, going_on])
        engine.wait_ended([stopping, going_on])
        alone = engine.add("qwen3", prompts[4], NEW_TOKENS, stop_ids=[stop])
        before = len(journal.sizes)
        engine.turn("qwen3", [alone])
        engine.wait_ended([alone])
        # The harness fails if a token comes after an end.
        assert engine.tokens(stopping) == engine.tokens(alone) == expected[4][:length]
        assert engine.tokens(going_on) == expected[3]
        while (ended := engine.wait_for(events.TurnEnded)).steps != length:
            pass
        assert ended.reason is TurnEndReason.COMPLETED
        engine.parts.thread.stop()
        engine.parts._driven._memory.audit()
        assert engine.parts._driven._memory.num_sequences == 0
    assert journal.sizes[:before].count(2) >= length
    # One in vain, which nobody waited for.
    assert journal.sizes[before:] == [1] * (length + 1)
    assert journal.entries[-1] == ("wait", before + length - 1)


def test_steps_of_a_padded_size_are_recorded_at_their_second_use_and_kept_across_switches(
    path: Path, prompts: list[list[int]], expected: list[list[int]], shm_dir: Path
) -> None:
    with EngineHarness(shm_dir, device_memory_bytes=8 * MIB, max_batch_sequences=6) as engine:
        for name in ("a", "b"):
            engine.load(path, name)
        sampled = SamplingParameters(temperature=1.0, seed=3)
        members = {
            name: [engine.add(name, prompt, NEW_TOKENS) for prompt in prompts[:5]]
            for name in ("a", "b")
        }
        members["b"].append(engine.add("b", prompts[5], NEW_TOKENS, sampling=sampled))
        engine.alternate(members, quota_ns=1_000_000)
        for name in ("a", "b"):
            assert [engine.tokens(handle) for handle in members[name][:5]] == expected[:5]
        started = [event for event in engine.log if isinstance(event, events.TurnStarted)]
        assert sum(event.switched for event in started) > 4
        engine.parts.thread.stop()
        models = engine.parts._driven._models
        recorded = {name: models.get(name).decode.recorded for name in ("a", "b")}  # type: ignore[union-attr]
        usage, recorder = engine.parts.status.memory, engine.parts.execution.recorder
        assert recorder is not None
        assert usage.device_graph_bytes == recorder.nbytes > 0
    assert (6, True) in recorded["a"]
    assert (6, False) in recorded["b"]
    assert all(size in (1, 2, 4, 6) for keys in recorded.values() for size, _ in keys)


def test_penalties_count_tokens_that_are_still_under_way(
    path: Path,
    prompts: list[list[int]],
    sampled: list[list[int]],
    shm_dir: Path,
    journal: Journal,
) -> None:
    with EngineHarness(shm_dir) as engine:
        engine.load(path)
        # A first step that waits for copies goes alone.
        engine.generate("qwen3", prompts[:1], 1)
        journal.forget()
        handles = [
            engine.add("qwen3", prompt, NEW_TOKENS, sampling=sampling)
            for prompt, sampling in zip(prompts[:4], PENALIZED[:4], strict=True)
        ]
        engine.turn("qwen3", handles)
        engine.wait_ended(handles)
        assert [engine.tokens(handle) for handle in handles] == sampled[:4]
    wanted = [("issue", 0)]
    for number in range(1, NEW_TOKENS):
        wanted += [("issue", number), ("wait", number - 1)]
    assert journal.entries == [*wanted, ("wait", NEW_TOKENS - 1)]


def test_a_sequence_that_leaves_its_turn_keeps_the_token_under_way(
    path: Path, prompts: list[list[int]], expected: list[list[int]], shm_dir: Path
) -> None:
    with EngineHarness(shm_dir) as engine:
        engine.load(path)
        first, second = (engine.add("qwen3", prompts[n], NEW_TOKENS) for n in (2, 3))
        for _ in range(6):
            turn = engine.turn("qwen3", [first, second])
            engine.wait_for(events.StepBatch)
            engine.send(commands.LeaveTurn(turn, [first]))
            engine.wait_for(events.StepBatch)
            engine.send(commands.LeaveTurn(turn, [second]))
            engine.wait_for(events.TurnEnded)
            if engine.outputs[first].ended and engine.outputs[second].ended:
                break
        engine.turn("qwen3", [first, second])
        engine.wait_ended([first, second])
        assert [engine.tokens(first), engine.tokens(second)] == [expected[2], expected[3]]


@pytest.mark.parametrize("kind", ["expected", "sampled"])
@pytest.mark.parametrize(("seed", "device"), [*((n, 8) for n in range(4)), (4, 24), (5, 64)])
def test_whatever_happens_tokens_are_those_of_a_quiet_run(
    path: Path,
    prompts: list[list[int]],
    request: pytest.FixtureRequest,
    shm_dir: Path,
    seed: int,
    device: int,
    kind: str,
) -> None:
    """Cancels, joins, leaves, limits and switches at any moment, with little memory of any kind,
    or with enough for turns that follow each other at once; ``device`` in MiB."""
    expected: list[list[int]] = request.getfixturevalue(kind)
    sampling = PENALIZED if kind == "sampled" else [None] * len(prompts)
    rng = random.Random(seed)
    with EngineHarness(
        shm_dir, device_memory_bytes=device * MIB, cpu_num_slabs=6, cpu_slab_bytes=160 * 1024
    ) as engine:
        names = ("a", "b")
        for name in names:
            engine.load(path, name)
        owners: dict[int, tuple[str, int]] = {}
        cancelled: set[int] = set()
        turns: dict[str, int] = {}
        for _ in range(60):
            name = rng.choice(names)
            number = rng.randrange(len(prompts))
            handle = engine.add(name, prompts[number], NEW_TOKENS, sampling=sampling[number])
            owners[handle] = (name, number)
            mine = [h for h, (n, _) in owners.items() if n == name]
            match rng.randrange(5):
                case 0 | 1:
                    turns[name] = engine.turn(name, mine, rng.choice([1, 10**6, 10**7]))
                case 2 if name in turns:
                    engine.send(commands.JoinTurn(turns[name], mine))
                case 3 if name in turns:
                    engine.send(commands.LeaveTurn(turns[name], rng.sample(mine, len(mine) // 2)))
                    engine.send(commands.LimitTurn(turns[name], rng.choice([1, 10**7])))
                case 4:
                    victims = rng.sample(sorted(owners), 1)
                    cancelled.update(victims)
                    engine.send(commands.CancelSequences(victims))
            if rng.random() < 0.5:
                engine.next_event()
        for name in names:
            mine = [h for h, (n, _) in owners.items() if n == name]
            for _ in range(2):
                engine.turn(name, mine)
        engine.wait_ended(owners)
        for handle, (_, number) in owners.items():
            tokens = engine.outputs[handle].tokens
            if engine.outputs[handle].finish is FinishReason.CANCELLED:
                assert handle in cancelled
                assert tokens == expected[number][: len(tokens)]
            else:
                assert engine.tokens(handle) == expected[number]
        engine.parts.thread.stop()
        engine.parts._driven._memory.audit()
        assert engine.parts._driven._memory.num_sequences == 0
