"""Log-probabilities of prompts on real engines: those of the reference, and each of them once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from aegaeon.errors import EngineError
from aegaeon_worker.engine import commands, events, prefill_pace
from aegaeon_worker.models.interface import StepInput
from aegaeon_worker.models.native.model import NativeModel
from aegaeon_worker.sampling.parameters import SamplingParameters
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.reference import assert_scored, reference_tokens
from tests.worker.models.tiny import VOCAB_SIZE, make_checkpoint

pytestmark = pytest.mark.usefixtures("pace")

MIB = 1 << 20
PAGE_BYTES = 4096
NEW_TOKENS = 8
#: Around the edges of blocks, and beyond a step's chunk.
LENGTHS = (1, 2, 16, 17, 90, 700)
COUNTS = (0, 3, 20, 1, 5, 2)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return {
        family: make_checkpoint(family, root / family, seed=4)
        for family in ("llama", "qwen3", "gemma2")
    }


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(2)
    return [[rng.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step has room for the logits of 50 tokens, and looks at those of 7 at once."""
    monkeypatch.setattr(prefill_pace, "_SCORED_LOGITS", 50 * VOCAB_SIZE)
    monkeypatch.setattr(
        "aegaeon_worker.sampling.prompt_log_probabilities._PIECE", 7 * VOCAB_SIZE + 1
    )


def add_all(engine: EngineHarness, model: str, prompts: list[list[int]]) -> list[int]:
    return [
        engine.add(model, prompt, NEW_TOKENS, prompt_logprobs=count)
        for prompt, count in zip(prompts, COUNTS, strict=True)
    ]


def check_all(
    engine: EngineHarness, path: Path, prompts: list[list[int]], handles: list[int]
) -> None:
    for handle, prompt, count in zip(handles, prompts, COUNTS, strict=True):
        assert_scored(engine.outputs[handle].prompt, path, prompt, count)


@pytest.mark.parametrize("family", ["llama", "gemma2"])  # native and generic
def test_prompts_are_scored_alone_and_beside_others_and_tokens_stay_the_same(
    checkpoints: dict[str, Path], prompts: list[list[int]], shm_dir: Path, family: str
) -> None:
    path = checkpoints[family]
    expected = reference_tokens(path, prompts, NEW_TOKENS)
    with EngineHarness(shm_dir) as engine:
        engine.load(path)
        alone = add_all(engine, path.name, prompts)
        for handle in alone:
            engine.turn(path.name, [handle])
        engine.wait_ended(alone)
        plain = [engine.add(path.name, prompt, NEW_TOKENS) for prompt in prompts]
        sampled = engine.add(
            path.name, prompts[4], NEW_TOKENS, sampling=SamplingParameters(1.0, top_k=1, logprobs=2)
        )
        beside = add_all(engine, path.name, prompts)
        mixed = [handle for pair in zip(plain, beside, strict=True) for handle in pair]
        engine.turn(path.name, [sampled, *mixed])
        engine.wait_ended([sampled, *mixed])
        for handles in (alone, beside):
            check_all(engine, path, prompts, handles)
            assert [engine.tokens(handle) for handle in handles] == expected
        assert [engine.tokens(handle) for handle in plain] == expected
        assert all(not engine.outputs[handle].prompt for handle in [sampled, *plain])


@pytest.mark.parametrize(
    "slab_bytes", [4 * MIB, 3 * PAGE_BYTES], ids=["swapped", "mostly computed again"]
)
def test_switches_swaps_and_recomputation_tell_every_token_once(
    checkpoints: dict[str, Path],
    prompts: list[list[int]],
    shm_dir: Path,
    narrow: None,
    slab_bytes: int,
) -> None:
    # A chunk for the weights of one model, and one for KV.
    with EngineHarness(shm_dir, device_memory_bytes=4 * MIB, cpu_slab_bytes=slab_bytes) as engine:
        paths = [checkpoints["llama"], checkpoints["qwen3"]]
        members = {}
        for path in paths:
            engine.load(path)
            members[path.name] = add_all(engine, path.name, prompts)
        engine.alternate(members, quota_ns=1)
        for path in paths:
            check_all(engine, path, prompts, members[path.name])
        ended = [event for event in engine.log if isinstance(event, events.TurnEnded)]
        lost = sum(event.recomputed_sequences for event in ended)
        assert (lost > 0) == (slab_bytes < MIB)


def test_a_batch_that_outgrows_the_device_tells_every_token_once(
    checkpoints: dict[str, Path], prompts: list[list[int]], shm_dir: Path, narrow: None
) -> None:
    path = checkpoints["llama"]
    with EngineHarness(
        shm_dir, device_memory_bytes=4 * MIB, cpu_slab_bytes=3 * PAGE_BYTES
    ) as engine:
        engine.load(path)
        rounds = [add_all(engine, path.name, prompts) for _ in range(6)]
        everyone = [handle for handles in rounds for handle in handles]
        engine.turn(path.name, everyone)
        engine.wait_ended(everyone)
        for handles in rounds:
            check_all(engine, path, prompts, handles)


def test_a_step_has_no_more_logits_than_there_is_room_for(
    checkpoints: dict[str, Path],
    prompts: list[list[int]],
    shm_dir: Path,
    narrow: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forward, rows = NativeModel.forward, []

    def counted(self: NativeModel, step: StepInput) -> torch.Tensor:
        rows.append(len(step.logit_rows))
        return forward(self, step)

    monkeypatch.setattr(NativeModel, "forward", counted)
    path = checkpoints["llama"]
    with EngineHarness(shm_dir) as engine:
        engine.load(path)
        handles = add_all(engine, path.name, prompts)
        plain = engine.add(path.name, prompts[-1], NEW_TOKENS)
        engine.turn(path.name, [*handles, plain])
        engine.wait_ended([*handles, plain])
        check_all(engine, path, prompts, handles)
    assert 50 <= max(rows) <= 50 + len(LENGTHS) + 1


def test_kv_that_others_have_left_is_not_used_for_a_prompt_that_is_scored(
    checkpoints: dict[str, Path], prompts: list[list[int]], shm_dir: Path
) -> None:
    path, prompt = checkpoints["llama"], prompts[4]
    with EngineHarness(shm_dir) as engine:
        engine.load(path)
        engine.generate(path.name, [prompt], 2)
        handles = [engine.add(path.name, prompt, 2, prompt_logprobs=1) for _ in range(3)]
        engine.turn(path.name, handles)
        engine.wait_ended(handles)
        for handle in handles:
            assert_scored(engine.outputs[handle].prompt, path, prompt, 1)


@pytest.mark.parametrize("told", [1, 5, 89, 90])
def test_an_interrupted_attempt_goes_on_where_it_was(
    checkpoints: dict[str, Path], prompts: list[list[int]], shm_dir: Path, told: int
) -> None:
    path, prompt = checkpoints["llama"], prompts[4]
    expected = reference_tokens(path, [prompt], NEW_TOKENS)[0]
    with EngineHarness(shm_dir) as engine:
        engine.load(path)
        fields = {"prompt_logprobs": 2, "told": told}
        again = engine.add(path.name, prompt, NEW_TOKENS, **fields)
        made = engine.add(path.name, prompt, NEW_TOKENS, generated=expected[:3], **fields)
        engine.turn(path.name, [again, made])
        engine.wait_ended([again, made])
        assert [engine.tokens(again), engine.tokens(made)] == [expected, expected[3:]]
        for handle in (again, made):
            assert_scored(engine.outputs[handle].prompt, path, prompt, 2, told)


def test_a_handed_off_sequence_has_told_all_before(
    checkpoints: dict[str, Path], prompts: list[list[int]], shm_dir: Path
) -> None:
    path = checkpoints["llama"]
    expected = reference_tokens(path, prompts, NEW_TOKENS)
    with (
        EngineHarness(shm_dir, worker_index=0) as prefill,
        EngineHarness(shm_dir, worker_index=1) as decode,
    ):
        prefill.load(path)
        decode.load(path)
        handles = add_all(prefill, path.name, prompts)
        prefill.turn(path.name, handles, hands_off=True)
        prefill.wait_ended(handles)
        check_all(prefill, path, prompts, handles)
        went_on = [
            decode.add(
                path.name,
                prompt,
                NEW_TOKENS,
                generated=prefill.tokens(handle),
                kv=prefill.outputs[handle].place,
                prompt_logprobs=1,
                told=len(prompt),
            )
            for handle, prompt in zip(handles, prompts, strict=True)
        ]
        unscored = decode.add(
            path.name,
            prompts[4],
            generated=prefill.tokens(handles[4]),
            kv=prefill.outputs[handles[4]].place,
            prompt_logprobs=1,
            told=89,
        )
        decode.turn(path.name, [*went_on, unscored])
        decode.wait_ended([*went_on, unscored])
        for before, after, tokens in zip(handles, went_on, expected, strict=True):
            assert prefill.tokens(before) + decode.tokens(after) == tokens
        assert all(not decode.outputs[handle].prompt for handle in went_on)
        with pytest.raises(EngineError, match="from token 89 on"):
            decode.tokens(unscored)
        prefill.send(commands.ReleaseSequences(handles))


def test_logits_that_are_no_numbers_fail_the_prompt_alone(
    checkpoints: dict[str, Path],
    prompts: list[list[int]],
    shm_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, forward = checkpoints["llama"], NativeModel.forward
    there = {token for prompt in prompts for token in prompt}
    marker = next(token for token in range(3, VOCAB_SIZE) if token not in there)

    def broken(self: NativeModel, step: StepInput) -> torch.Tensor:
        """Logits after one token are spoilt."""
        at = step.token_ids[step.logit_rows] == marker
        return torch.where(at[:, None], torch.nan, forward(self, step))

    monkeypatch.setattr(NativeModel, "forward", broken)
    with EngineHarness(shm_dir) as engine:
        engine.load(path)
        handles = add_all(engine, path.name, prompts)
        bad = engine.add(path.name, [5, marker, *prompts[4]], NEW_TOKENS, prompt_logprobs=1)
        engine.turn(path.name, [bad, *handles])
        engine.wait_ended([bad, *handles])
        check_all(engine, path, prompts, handles)
        with pytest.raises(EngineError, match="of the prompt are not finite"):
            engine.tokens(bad)


def test_cancelled_sequences_are_told_nothing_more(
    checkpoints: dict[str, Path], prompts: list[list[int]], shm_dir: Path, narrow: None
) -> None:
    path = checkpoints["llama"]
    with EngineHarness(shm_dir) as engine:
        engine.load(path)
        first, second = (
            engine.add(path.name, prompts[5], NEW_TOKENS, prompt_logprobs=1) for _ in range(2)
        )
        engine.turn(path.name, [first, second])
        while not engine.outputs[first].prompt:
            engine.next_event()
        engine.send(commands.CancelSequences([first]))
        engine.wait_ended([first, second])
        assert_scored(engine.outputs[second].prompt, path, prompts[5], 1)
