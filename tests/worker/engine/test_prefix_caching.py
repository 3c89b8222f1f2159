"""Sequences that begin alike: the same tokens as without a cache, and only the rest computed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from aegaeon_worker.engine import commands, events
from aegaeon_worker.kv.prefix_use import Reused
from aegaeon_worker.sampling.parameters import SamplingParameters
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.reference import reference_tokens
from tests.worker.models.tiny import VOCAB_SIZE, make_checkpoint

pytestmark = pytest.mark.usefixtures("pace")

NEW_TOKENS = 20
MIB = 1 << 20
#: Tokens of the prompt that the others begin with: 18 blocks and a rest.
COMMON = 300
SAMPLED = SamplingParameters(temperature=1.0, seed=5, logprobs=2)


@dataclass(frozen=True)
class Case:
    """A checkpoint, prompts with a common beginning, and what `transformers` makes of them."""

    name: str
    path: Path
    prompts: list[list[int]]
    expected: list[list[int]]


@pytest.fixture(scope="module", params=["llama", "gemma3_text"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    root = tmp_path_factory.mktemp("checkpoints")
    path = make_checkpoint(
        request.param, root / request.param, 3, intermediate_size=2048, num_hidden_layers=3
    )
    rng = random.Random(9)
    common = [rng.randrange(3, VOCAB_SIZE) for _ in range(COMMON)]
    tails = [[rng.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in (0, 1, 4, 21, 90)]
    prompts = [common + tail for tail in tails]
    prompts += [common[:length] for length in (15, 16, 17, 32, 33)]
    return Case(request.param, path, prompts, reference_tokens(path, prompts, NEW_TOKENS))


def computed(engine: EngineHarness, since: int = 0) -> int:
    """Prompt tokens that steps processed."""
    log = engine.log[since:]
    return sum(event.prefill_tokens for event in log if isinstance(event, events.StepBatch))


def reused(engine: EngineHarness) -> dict[int, int]:
    """The last that was told of each sequence."""
    return {e.sequence: e.num_tokens for e in engine.log if isinstance(e, Reused)}


def test_a_prompt_seen_before_is_computed_from_its_last_block_on(case: Case, shm_dir: Path) -> None:
    with EngineHarness(shm_dir) as engine:
        engine.load(case.path)
        for prompt, expected in zip(case.prompts, case.expected, strict=True):
            for attempt in range(2):
                since = len(engine.log)
                handle = engine.add(case.name, prompt, NEW_TOKENS)
                engine.turn(case.name, [handle])
                engine.wait_ended([handle])
                assert engine.tokens(handle) == expected, (len(prompt), attempt)
                found = reused(engine).get(handle, 0)
                assert computed(engine, since) == len(prompt) - found
                if attempt:
                    assert found == (len(prompt) - 1) // 16 * 16
        first, *others = reused(engine).values()
        assert first == (COMMON - 1) // 16 * 16
        assert all(others), "the beginning is common to all"


def test_the_end_of_one_answer_is_the_beginning_of_the_next_question(
    case: Case, shm_dir: Path
) -> None:
    with EngineHarness(shm_dir) as engine:
        engine.load(case.path)
        [answer] = engine.generate(case.name, case.prompts[:1], NEW_TOKENS)
        engine.generate(case.name, [[*case.prompts[0], *answer, 5]], 1)
        # All of it but the last token, whose KV nobody has computed, in whole blocks.
        assert list(reused(engine).values()) == [(COMMON + NEW_TOKENS - 1) // 16 * 16]


def test_prompts_that_arrive_together_share_blocks_as_soon_as_they_are_computed(
    case: Case, shm_dir: Path
) -> None:
    with EngineHarness(shm_dir) as engine:
        engine.load(case.path)
        tokens = engine.generate(case.name, case.prompts[:1] * 8, NEW_TOKENS)
        assert tokens == [case.expected[0]] * 8
        last = COMMON - (COMMON - 1) // 16 * 16
        assert computed(engine) == COMMON + 7 * last, "the others wait for the first"
        usage = engine.wait_for(events.MemoryUsage)
        assert usage.prefix.queried_tokens == 8 * COMMON
        assert usage.prefix.reused_tokens == 8 * COMMON - computed(engine)


@pytest.mark.parametrize("sampling", [None, SAMPLED], ids=["greedy", "sampled"])
def test_tokens_and_log_probabilities_are_those_without_a_cache(
    case: Case, shm_dir: Path, sampling: SamplingParameters | None
) -> None:
    outputs = []
    for caching in (True, False):
        with EngineHarness(shm_dir, prefix_caching=caching) as engine:
            engine.load(case.path)
            for _ in range(2):
                handles = [
                    engine.add(case.name, prompt, NEW_TOKENS, sampling=sampling)
                    for prompt in case.prompts
                ]
                engine.turn(case.name, handles)
                engine.wait_ended(handles)
                outputs.append([engine.outputs[handle] for handle in handles])
            assert bool(reused(engine)) is caching
    for other in outputs[1:]:
        for ours, theirs in zip(outputs[0], other, strict=True):
            assert ours.tokens == theirs.tokens
            for told, expected in zip(
                ours.log_probabilities, theirs.log_probabilities, strict=True
            ):
                assert told.logprob == pytest.approx(expected.logprob, abs=1e-4)


def test_equal_chunks_give_equal_bits(case: Case, shm_dir: Path) -> None:
    """A prompt that is cut where another one's known part ends is computed in the same pieces."""
    sampling = SamplingParameters(temperature=0.0, logprobs=5)
    prompt = case.prompts[4]
    with EngineHarness(shm_dir) as engine:
        engine.load(case.path)
        told = []
        for _ in range(3):
            handle = engine.add(case.name, prompt, NEW_TOKENS, sampling=sampling)
            engine.turn(case.name, [handle])
            engine.wait_ended([handle])
            told.append(engine.outputs[handle].log_probabilities)
        assert told[1] == told[2], "both computed the last block alone"


def test_salts_models_and_requests_keep_to_themselves(case: Case, shm_dir: Path) -> None:
    with EngineHarness(shm_dir) as engine:
        engine.load(case.path)
        engine.load(case.path, "without", prefix_caching=False)
        engine.load(case.path, "twin")

        def run(model: str = case.name, *, salt: str = "", caching: bool = True) -> int:
            handle = engine.add(
                model, case.prompts[0], NEW_TOKENS, cache_salt=salt, prefix_caching=caching
            )
            engine.turn(model, [handle])
            engine.wait_ended([handle])
            assert engine.tokens(handle) == case.expected[0]
            return reused(engine).get(handle, 0)

        assert run(caching=False) == 0
        assert run() == 0, "nothing was left for others"
        assert run(caching=False) == 0, "nothing was taken from others"
        assert run(salt="a") == 0
        assert run(salt="a") == run() > 0
        assert run(salt="b") == 0
        assert run("without") == run("without") == 0
        assert run("twin") == 0


def test_models_that_take_turns_find_their_prefixes_in_host_memory(
    case: Case, shm_dir: Path
) -> None:
    with EngineHarness(shm_dir, device_memory_bytes=8 * MIB) as engine:
        for name in ("first", "second"):
            engine.load(case.path, name)
        for attempt in range(3):
            for name in ("first", "second"):
                handle = engine.add(name, case.prompts[4], NEW_TOKENS)
                turn = engine.turn(name, [handle])
                engine.wait_ended([handle])
                assert engine.tokens(handle) == case.expected[4]
                expected = (len(case.prompts[4]) - 1) // 16 * 16 if attempt else 0
                assert reused(engine).get(handle, 0) == expected, (name, attempt)
                started = [e for e in engine.log if isinstance(e, events.TurnStarted)]
                assert started[-1].turn_id == turn
                assert started[-1].switched, "the device holds one of them"
        usage = engine.wait_for(events.MemoryUsage)
        assert (usage.host_kv_bytes, usage.device_kv_bytes) == (0, 0), "keeping takes nothing"
        assert usage.prefix.host_bytes > 0


def test_sequences_that_lost_their_kv_find_what_others_have(case: Case, shm_dir: Path) -> None:
    with EngineHarness(
        shm_dir, device_memory_bytes=8 * MIB, cpu_num_slabs=1, cpu_slab_bytes=64 << 10
    ) as engine:
        for name in ("first", "second"):
            engine.load(case.path, name)
        members = {
            name: [engine.add(name, prompt, NEW_TOKENS) for prompt in case.prompts[3:6]]
            for name in ("first", "second")
        }
        engine.alternate(members, quota_ns=1, quotas=[20_000_000, 1])
        for handles in members.values():
            for handle, expected in zip(handles, case.expected[3:6], strict=True):
                assert engine.tokens(handle) == expected
        ended = [event for event in engine.log if isinstance(event, events.TurnEnded)]
        assert sum(event.recomputed_sequences for event in ended) > 0
        assert computed(engine) < sum(len(prompt) for prompt in case.prompts[3:6]) * len(ended)


def test_new_weights_of_the_same_name_find_nothing(
    case: Case, shm_dir: Path, tmp_path: Path
) -> None:
    changed = make_checkpoint("llama", tmp_path / "changed", 17)
    with EngineHarness(shm_dir) as engine:
        engine.load(case.path, "model")
        assert engine.generate("model", case.prompts[:1], NEW_TOKENS) == case.expected[:1]
        engine.send(commands.UnloadModel("model"))
        engine.wait_for(events.ModelUnloaded)
        engine.load(changed, "model")
        expected = reference_tokens(changed, case.prompts[:1], NEW_TOKENS)
        assert engine.generate("model", case.prompts[:1], NEW_TOKENS) == expected
        assert reused(engine) == {}


def test_a_prefill_engine_hands_off_what_it_found(case: Case, shm_dir: Path) -> None:
    with EngineHarness(shm_dir) as prefill, EngineHarness(shm_dir, worker_index=1) as decode:
        for engine in (prefill, decode):
            engine.load(case.path)
        for attempt in range(2):
            handles = [prefill.add(case.name, prompt, NEW_TOKENS) for prompt in case.prompts]
            prefill.turn(case.name, handles, hands_off=True)
            prefill.wait_ended(handles)
            going_on = [
                decode.add(
                    case.name,
                    prompt,
                    NEW_TOKENS,
                    generated=prefill.tokens(handle),
                    kv=prefill.outputs[handle].place,
                )
                for prompt, handle in zip(case.prompts, handles, strict=True)
            ]
            decode.turn(case.name, going_on)
            decode.wait_ended(going_on)
            for handle, expected in zip(going_on, case.expected, strict=True):
                assert decode.tokens(handle) == expected[1:], attempt
            prefill.send(commands.ReleaseSequences(handles))
            if attempt:
                assert all(
                    reused(prefill)[h]
                    for h, p in zip(handles, case.prompts, strict=True)
                    if len(p) > 16
                )
        assert computed(decode) == 0
