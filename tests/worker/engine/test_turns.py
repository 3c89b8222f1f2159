"""Turns, switches and memory pressure on a real engine with tiny checkpoints."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from aegaeon.errors import AegaeonError, ErrorReason
from aegaeon_worker.device.interface import Device
from aegaeon_worker.engine import commands, events, request_log, turn_runner
from aegaeon_worker.engine.events import FinishReason, TurnEndReason
from aegaeon_worker.engine.execution import Execution
from aegaeon_worker.engine.prefill_pace import StepLimits
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.reference import reference_tokens
from tests.worker.models.tiny import VOCAB_SIZE, make_checkpoint

pytestmark = pytest.mark.usefixtures("pace")

NEW_TOKENS = 24
MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """A checkpoint with prompts and what `transformers` makes of them."""

    name: str
    path: Path
    prompts: list[list[int]]
    expected: list[list[int]]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    root = tmp_path_factory.mktemp("checkpoints")
    rng = random.Random(7)
    made = []
    # Large enough that a pool of a few chunks holds the weights of one of them only.
    for seed, family in enumerate(["llama", "qwen3", "gemma3_text"]):
        path = make_checkpoint(
            family, root / family, seed, intermediate_size=2048, num_hidden_layers=3
        )
        prompts = [
            [rng.randrange(3, VOCAB_SIZE) for _ in range(length)]
            for length in (1, 5, 16, 17, 90, 200)
        ]
        made.append(Case(family, path, prompts, reference_tokens(path, prompts, NEW_TOKENS)))
    return made


def add_all(engine: EngineHarness, case: Case) -> list[int]:
    return [engine.add(case.name, prompt, NEW_TOKENS) for prompt in case.prompts]


def check(engine: EngineHarness, case: Case, handles: list[int]) -> None:
    for handle, expected in zip(handles, case.expected, strict=True):
        assert engine.tokens(handle) == expected
        assert engine.outputs[handle].finish is FinishReason.LENGTH


def test_a_batch_of_mixed_lengths_equals_transformers(cases: list[Case], shm_dir: Path) -> None:
    with EngineHarness(shm_dir) as engine:
        engine.load(cases[0].path)
        handles = add_all(engine, cases[0])
        engine.turn(cases[0].name, handles)
        engine.wait_ended(handles)
        check(engine, cases[0], handles)


def test_models_that_do_not_fit_together_alternate_without_changing_a_token(
    cases: list[Case], shm_dir: Path
) -> None:
    with EngineHarness(shm_dir, device_memory_bytes=8 * MIB) as engine:
        members = {}
        for case in cases:
            engine.load(case.path)
            members[case.name] = add_all(engine, case)
        engine.alternate(members, quota_ns=1)
        for case in cases:
            check(engine, case, members[case.name])
        started = [event for event in engine.log if isinstance(event, events.TurnStarted)]
        assert sum(event.switched for event in started) > 10
        assert sum(event.kv_bytes for event in started) > 0, "KV was never swapped"


def test_sequences_that_lose_their_kv_are_computed_again_without_changing_a_token(
    cases: list[Case], shm_dir: Path
) -> None:
    # Slabs of one block each: most KV cannot be kept.
    block = 3 * 2 * 16 * 2 * 16 * 4
    with EngineHarness(
        shm_dir,
        device_memory_bytes=8 * MIB,
        cpu_num_slabs=4,
        cpu_slab_bytes=-(-block // 4096) * 4096,
    ) as engine:
        members = {}
        for case in cases:
            engine.load(case.path)
            members[case.name] = add_all(engine, case)
        engine.alternate(members, quota_ns=1)
        for case in cases:
            check(engine, case, members[case.name])
        ended = [event for event in engine.log if isinstance(event, events.TurnEnded)]
        assert sum(event.recomputed_sequences for event in ended) > 0


def test_prompts_of_many_steps_end_although_every_turn_is_short_and_loses_their_kv(
    cases: list[Case], shm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = EngineHarness.choose

    def with_short_steps(device: Device) -> Execution:
        return replace(choose(device), limits=StepLimits(32, 16))

    monkeypatch.setattr(EngineHarness, "choose", staticmethod(with_short_steps))
    with EngineHarness(
        shm_dir,
        device_memory_bytes=8 * MIB,
        cpu_num_slabs=1,
        cpu_slab_bytes=12_288,  # one block: no KV of theirs can be kept
    ) as engine:
        members = {}
        for case in cases[:2]:
            engine.load(case.path)
            members[case.name] = [engine.add(case.name, case.prompts[-1], 4)]
        turns = engine.alternate(members, quota_ns=1)
        for case in cases[:2]:
            assert engine.tokens(members[case.name][0]) == case.expected[-1][:4]
    assert turns <= 2 * 6, "a turn was spent without a token"


def test_a_batch_that_outgrows_the_device_gives_way_and_still_ends_right(
    cases: list[Case], shm_dir: Path
) -> None:
    case = cases[0]
    with EngineHarness(shm_dir, device_memory_bytes=8 * MIB) as engine:
        engine.load(case.path)
        prompts = [case.prompts[-1]] * 40
        handles = [engine.add(case.name, prompt, NEW_TOKENS) for prompt in prompts]
        engine.turn(case.name, handles)
        engine.wait_ended(handles)
        assert {tuple(engine.tokens(handle)) for handle in handles} == {tuple(case.expected[-1])}


def test_a_quota_ends_a_turn_at_a_token_boundary_and_the_next_one_goes_on(
    cases: list[Case], shm_dir: Path
) -> None:
    case = cases[0]
    with EngineHarness(shm_dir) as engine:
        engine.load(case.path)
        handles = add_all(engine, case)
        first = engine.turn(case.name, handles, quota_ns=1)
        engine.turn(case.name, handles)
        ended = engine.wait_for(events.TurnEnded)
        assert (ended.turn_id, ended.reason, ended.steps) == (first, TurnEndReason.QUOTA, 1)
        engine.wait_ended(handles)
        check(engine, case, handles)


def test_sequences_join_and_leave_a_running_turn(cases: list[Case], shm_dir: Path) -> None:
    case = cases[0]
    with EngineHarness(shm_dir) as engine:
        engine.load(case.path)
        handles = add_all(engine, case)
        turn = engine.turn(case.name, handles[:2])
        engine.wait_for(events.StepBatch)
        engine.send(commands.JoinTurn(turn, handles[2:]))
        engine.send(commands.LeaveTurn(turn, handles[:1]))
        engine.wait_ended(handles[1:])
        assert not engine.outputs[handles[0]].ended
        assert engine.wait_for(events.TurnEnded).reason is TurnEndReason.COMPLETED
        engine.turn(case.name, handles[:1])
        engine.wait_ended(handles)
        check(engine, case, handles)


def test_cancelled_sequences_end_once_and_free_their_memory(
    cases: list[Case], shm_dir: Path
) -> None:
    case = cases[0]
    with EngineHarness(shm_dir) as engine:
        engine.load(case.path)
        handles = add_all(engine, case)
        engine.turn(case.name, handles)
        engine.wait_for(events.StepBatch)
        engine.send(commands.CancelSequences([*handles[:3], 999]))
        engine.wait_ended(handles)
        for handle in handles[:3]:
            assert engine.outputs[handle].finish is FinishReason.CANCELLED
        assert engine.tokens(handles[-1]) == case.expected[-1]
        while (usage := engine.wait_for(events.MemoryUsage)).sequences:
            pass
        assert usage.device_kv_bytes == 0
        assert usage.host_kv_bytes == 0


def test_generated_tokens_of_an_earlier_attempt_are_continued(
    cases: list[Case], shm_dir: Path
) -> None:
    case = cases[1]
    with EngineHarness(shm_dir) as engine:
        engine.load(case.path)
        expected = case.expected[3]
        handle = engine.add(case.name, case.prompts[3], NEW_TOKENS, generated=expected[:7])
        engine.turn(case.name, [handle])
        engine.wait_ended([handle])
        assert engine.tokens(handle) == expected[7:]


def test_a_stop_token_ends_a_sequence_and_a_minimum_holds_it_off(
    cases: list[Case], shm_dir: Path
) -> None:
    case = cases[0]
    expected = case.expected[4]
    stop = expected[3]
    first = expected.index(stop)
    with EngineHarness(shm_dir) as engine:
        engine.load(case.path)
        plain = engine.add(case.name, case.prompts[4], NEW_TOKENS, stop_ids=[stop])
        held = engine.add(
            case.name, case.prompts[4], NEW_TOKENS, stop_ids=[stop], min_new_tokens=first + 1
        )
        short = engine.add(
            case.name, case.prompts[4], NEW_TOKENS, max_model_len=len(case.prompts[4]) + 2
        )
        engine.turn(case.name, [plain, held, short])
        engine.wait_ended([plain, held, short])
        assert engine.tokens(plain) == expected[: first + 1]
        assert engine.outputs[plain].finish is FinishReason.STOP
        assert engine.tokens(held)[:first] == expected[:first]
        assert engine.tokens(held)[first] != stop
        assert engine.tokens(short) == expected[:2]
        assert engine.outputs[short].finish is FinishReason.LENGTH


@pytest.mark.parametrize("prompt", [[], [VOCAB_SIZE], [3] * 1024])
def test_a_sequence_that_cannot_run_fails_alone(
    cases: list[Case], shm_dir: Path, prompt: list[int]
) -> None:
    case = cases[0]
    with EngineHarness(shm_dir) as engine:
        engine.load(case.path)
        bad = engine.add(case.name, prompt)
        good = add_all(engine, case)
        engine.turn(case.name, [bad, *good])
        engine.wait_ended([bad, *good])
        assert isinstance(engine.outputs[bad].error, AegaeonError)
        check(engine, case, good)


def test_a_fault_in_the_forward_pass_fails_only_the_sequence_at_fault(
    cases: list[Case],
    shm_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    case = cases[0]
    sound = turn_runner.issue_step

    def poisoned(model, chunks, *rest):  # type: ignore[no-untyped-def]
        if any(501 in chunk.sequence.tokens for chunk in chunks):
            raise RuntimeError("injected")
        return sound(model, chunks, *rest)

    monkeypatch.setattr(turn_runner, "issue_step", poisoned)
    with EngineHarness(shm_dir) as engine:
        engine.load(case.path)
        bad = engine.add(case.name, [501, 7])
        good = [engine.add(case.name, prompt, 1) for prompt in ([5], [6, 7])]
        engine.turn(case.name, [*good, bad])
        engine.wait_ended([*good, bad])
        error = engine.outputs[bad].error
        assert isinstance(error, AegaeonError)
        assert error.reason is ErrorReason.ENGINE_FAULT
        assert "injected" in error.message
        fields = {"request_id": f"label-{bad}", "model": case.name}
        # Not what a GPU's pinner says of a folder on a disk.
        lines = [line for line in caplog.records if line.name == request_log.__name__]
        assert [getattr(line, "fields", None) for line in lines] == [fields] * 2
        assert all(engine.outputs[handle].finish is FinishReason.LENGTH for handle in good)


def test_a_sequence_larger_than_the_device_fails_with_both_sizes_and_alone(
    tmp_path: Path, shm_dir: Path
) -> None:
    path = make_checkpoint("llama", tmp_path / "long", max_position_embeddings=8192)
    with EngineHarness(shm_dir, device_memory_bytes=4 * MIB) as engine:
        engine.load(path)
        large = engine.add("long", [3] * 6000, 2)
        small = engine.add("long", [3] * 60, 2)
        engine.turn("long", [large, small])
        engine.wait_ended([large, small])
        error = engine.outputs[large].error
        assert isinstance(error, AegaeonError)
        assert error.reason is ErrorReason.INSUFFICIENT_MEMORY
        assert int(error.metadata["needed_bytes"]) > int(error.metadata["available_bytes"])
        assert engine.outputs[small].finish is FinishReason.LENGTH


def test_a_new_command_stream_forgets_the_old_one_and_keeps_models(
    cases: list[Case], shm_dir: Path
) -> None:
    case = cases[0]
    with EngineHarness(shm_dir) as engine:
        engine.load(case.path)
        handles = add_all(engine, case)
        engine.turn(case.name, handles)
        engine.wait_for(events.StepBatch)
        late: list[events.Event] = []
        engine.send(commands.Attach(late.append))
        engine.send(commands.Attach(engine._inbox.put))
        ready = engine.wait_for(events.Ready)
        assert [model.spec.name for model in ready.models] == [case.name]
        assert isinstance(late[0], events.Ready)
        assert not any(isinstance(event, events.StepBatch) for event in late)
        assert engine.generate(case.name, case.prompts, NEW_TOKENS) == case.expected


def test_a_model_in_use_is_not_unloaded_and_an_unloaded_one_refuses_sequences(
    cases: list[Case], shm_dir: Path
) -> None:
    case = cases[0]
    with EngineHarness(shm_dir) as engine:
        engine.load(case.path)
        handle = engine.add(case.name, [3, 4], 4)
        engine.send(commands.UnloadModel(case.name))
        assert engine.wait_for(events.ModelFailed).model == case.name
        engine.turn(case.name, [handle])
        engine.wait_ended([handle])
        engine.send(commands.UnloadModel(case.name))
        assert engine.wait_for(events.ModelUnloaded).device_bytes > 0
        refused = engine.add(case.name, [3, 4], 4)
        engine.wait_ended([refused])
        assert engine.outputs[refused].error is not None
        reloaded = engine.load(case.path)
        assert reloaded.model.spec.name == case.name
        assert engine.generate(case.name, case.prompts, NEW_TOKENS) == case.expected
