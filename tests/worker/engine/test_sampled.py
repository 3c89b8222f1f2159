"""Sampled sequences on real engines: a seed gives the same tokens, however they come about."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aegaeon.errors import EngineError
from aegaeon_worker.engine import commands, events
from aegaeon_worker.models.interface import StepInput
from aegaeon_worker.models.native.model import NativeModel
from aegaeon_worker.sampling.parameters import SamplingParameters
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.reference import reference_log_probabilities, reference_tokens
from tests.worker.models.tiny import VOCAB_SIZE, make_checkpoint

pytestmark = pytest.mark.usefixtures("pace")

NEW_TOKENS = 40
MIB = 1 << 20
PAGE_BYTES = 4096
#: One of each kind; their seeds follow.
KINDS = [
    SamplingParameters(temperature=1.0),
    SamplingParameters(temperature=0.8, top_k=40),
    SamplingParameters(temperature=1.5, top_p=0.9),
    SamplingParameters(temperature=1.2, min_p=0.02, repetition_penalty=1.2),
    SamplingParameters(temperature=1.0, presence_penalty=0.5, frequency_penalty=0.3),
    SamplingParameters(temperature=1.0, logit_bias=((7, 5.0), (8, -100.0))),
]
SAMPLED = [replace(kind, seed=100 + number) for number, kind in enumerate(KINDS)]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return [make_checkpoint(family, root / family, seed=4) for family in ("llama", "qwen3")]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(1)
    return [
        [rng.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in (1, 7, 16, 40, 90, 200)
    ]


@pytest.fixture(scope="module")
def alone(
    checkpoints: list[Path], prompts: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[list[int]]]:
    """By model: what every sequence gets in a turn of its own."""
    with EngineHarness(tmp_path_factory.mktemp("shm")) as engine:
        found = {}
        for path in checkpoints:
            engine.load(path)
            handles = add_all(engine, path.name, prompts)
            for handle in handles:
                engine.turn(path.name, [handle])
            engine.wait_ended(handles)
            found[path.name] = [engine.tokens(handle) for handle in handles]
    assert all(len(set(map(tuple, rows))) == len(rows) for rows in found.values())
    return found


def add_all(engine: EngineHarness, model: str, prompts: list[list[int]]) -> list[int]:
    return [
        engine.add(model, prompt, NEW_TOKENS, sampling=sampling)
        for prompt, sampling in zip(prompts, SAMPLED, strict=True)
    ]


def tokens(engine: EngineHarness, handles: list[int]) -> list[list[int]]:
    return [engine.tokens(handle) for handle in handles]


def test_together_with_greedy_sequences_each_gets_what_it_gets_alone(
    checkpoints: list[Path],
    prompts: list[list[int]],
    alone: dict[str, list[list[int]]],
    shm_dir: Path,
) -> None:
    path = checkpoints[0]
    with EngineHarness(shm_dir) as engine:
        engine.load(path)
        sampled = add_all(engine, path.name, prompts)
        greedy = [engine.add(path.name, prompt, NEW_TOKENS) for prompt in prompts]
        mixed = [handle for pair in zip(greedy, sampled, strict=True) for handle in pair]
        engine.turn(path.name, mixed)
        engine.wait_ended(mixed)
        assert tokens(engine, sampled) == alone[path.name]
        assert tokens(engine, greedy) == reference_tokens(path, prompts, NEW_TOKENS)


@pytest.mark.parametrize(
    "slab_bytes", [4 * MIB, 3 * PAGE_BYTES], ids=["swapped", "mostly computed again"]
)
def test_switches_swaps_and_recomputation_change_no_token(
    checkpoints: list[Path],
    prompts: list[list[int]],
    alone: dict[str, list[list[int]]],
    shm_dir: Path,
    slab_bytes: int,
) -> None:
    # A chunk for the weights of one model, and one for KV.
    with EngineHarness(shm_dir, device_memory_bytes=4 * MIB, cpu_slab_bytes=slab_bytes) as engine:
        members = {}
        for path in checkpoints:
            engine.load(path)
            members[path.name] = add_all(engine, path.name, prompts)
        engine.alternate(members, quota_ns=1)
        for name, handles in members.items():
            assert tokens(engine, handles) == alone[name]
        started = [event for event in engine.log if isinstance(event, events.TurnStarted)]
        assert sum(event.switched for event in started) > 10
        ended = [event for event in engine.log if isinstance(event, events.TurnEnded)]
        lost = sum(event.recomputed_sequences for event in ended)
        assert lost > 0 if slab_bytes < MIB else sum(event.kv_bytes for event in started) > 0


def test_a_batch_that_outgrows_the_device_changes_no_token(
    checkpoints: list[Path],
    prompts: list[list[int]],
    alone: dict[str, list[list[int]]],
    shm_dir: Path,
) -> None:
    path = checkpoints[0]
    with EngineHarness(shm_dir, device_memory_bytes=4 * MIB) as engine:
        engine.load(path)
        rounds = [add_all(engine, path.name, prompts) for _ in range(6)]
        everyone = [handle for handles in rounds for handle in handles]
        engine.turn(path.name, everyone)
        engine.wait_ended(everyone)
        assert all(tokens(engine, handles) == alone[path.name] for handles in rounds)


def test_another_engine_goes_on_with_what_was_generated(
    checkpoints: list[Path],
    prompts: list[list[int]],
    alone: dict[str, list[list[int]]],
    shm_dir: Path,
) -> None:
    path = checkpoints[0]
    with EngineHarness(shm_dir) as engine:
        engine.load(path)
        handles = [
            engine.add(path.name, prompt, NEW_TOKENS, generated=made[:kept], sampling=sampling)
            for kept, prompt, made, sampling in zip(
                (1, 2, 13, 20, 38, 39), prompts, alone[path.name], SAMPLED, strict=True
            )
        ]
        engine.turn(path.name, handles)
        engine.wait_ended(handles)
        kept = (1, 2, 13, 20, 38, 39)
        for handle, count, made in zip(handles, kept, alone[path.name], strict=True):
            assert engine.tokens(handle) == made[count:]


def test_a_handed_off_sequence_goes_on_with_the_same_tokens(
    checkpoints: list[Path],
    prompts: list[list[int]],
    alone: dict[str, list[list[int]]],
    shm_dir: Path,
) -> None:
    path = checkpoints[0]
    with (
        EngineHarness(shm_dir, worker_index=0) as prefill,
        EngineHarness(shm_dir, worker_index=1) as decode,
    ):
        prefill.load(path)
        decode.load(path)
        handles = add_all(prefill, path.name, prompts)
        prefill.turn(path.name, handles, hands_off=True)
        prefill.wait_ended(handles)
        went_on = [
            decode.add(
                path.name,
                prompt,
                NEW_TOKENS,
                generated=prefill.tokens(handle),
                kv=prefill.outputs[handle].place,
                sampling=sampling,
            )
            for handle, prompt, sampling in zip(handles, prompts, SAMPLED, strict=True)
        ]
        decode.turn(path.name, went_on)
        decode.wait_ended(went_on)
        for before, after, expected in zip(handles, went_on, alone[path.name], strict=True):
            assert prefill.tokens(before) + decode.tokens(after) == expected
        prefill.send(commands.ReleaseSequences(handles))


def test_a_prompt_of_several_steps_gets_the_same_tokens_alone_and_beside_others(
    checkpoints: list[Path],
    prompts: list[list[int]],
    alone: dict[str, list[list[int]]],
    shm_dir: Path,
) -> None:
    path = checkpoints[0]
    long = [token for prompt in prompts for token in prompt] * 2
    with EngineHarness(shm_dir) as engine:
        engine.load(path)
        first = engine.add(path.name, long, NEW_TOKENS, sampling=SAMPLED[3])
        engine.turn(path.name, [first])
        engine.wait_ended([first])
        again = engine.add(path.name, long, NEW_TOKENS, sampling=SAMPLED[3])
        others = add_all(engine, path.name, prompts)
        engine.turn(path.name, [*others, again])
        engine.wait_ended([*others, again])
        assert engine.tokens(first) == engine.tokens(again)
        assert tokens(engine, others) == alone[path.name]


def test_other_seeds_give_other_tokens(
    checkpoints: list[Path], prompts: list[list[int]], shm_dir: Path
) -> None:
    path = checkpoints[0]
    with EngineHarness(shm_dir) as engine:
        engine.load(path)
        handles = [
            engine.add(
                path.name, prompts[1], 12, sampling=SamplingParameters(temperature=1.0, seed=seed)
            )
            for seed in range(8)
        ]
        engine.turn(path.name, handles)
        engine.wait_ended(handles)
        assert len({tuple(engine.tokens(handle)) for handle in handles}) == 8


@pytest.mark.parametrize("family", ["llama", "gemma2"])  # native and generic
def test_log_probabilities_are_those_of_the_reference_whatever_the_sampling(
    family: str, prompts: list[list[int]], shm_dir: Path, tmp_path: Path
) -> None:
    path = make_checkpoint(family, tmp_path / family, seed=4)
    kinds = [SamplingParameters(), *SAMPLED]
    with EngineHarness(shm_dir) as engine:
        engine.load(path)
        prompt = prompts[3]
        handles = [
            engine.add(path.name, prompt, 12, sampling=replace(kind, logprobs=count))
            for kind, count in zip(kinds, (5, 0, 1, 20, 3, 20, 20), strict=True)
        ]
        plain = engine.add(path.name, prompt, 12, sampling=SAMPLED[0])
        engine.turn(path.name, [plain, *handles])
        engine.wait_ended([plain, *handles])
        outputs = [engine.outputs[handle] for handle in handles]
        assert engine.outputs[plain].log_probabilities == []
        assert engine.tokens(plain) == engine.tokens(handles[1])
    for output, count in zip(outputs, (5, 0, 1, 20, 3, 20, 20), strict=True):
        expected = reference_log_probabilities(path, prompt + output.tokens)[len(prompt) - 1 : -1]
        own = expected.gather(1, torch.tensor(output.tokens)[:, None]).squeeze(1)
        told = output.log_probabilities
        assert [entry.logprob for entry in told] == pytest.approx(own.tolist(), abs=1e-4)
        for entry, row in zip(told, expected, strict=True):
            best = row.topk(count)
            assert entry.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-4)
            values = row[list(entry.top_token_ids)].tolist()
            assert values == pytest.approx(list(entry.top_logprobs), abs=1e-4)
            assert len(set(entry.top_token_ids)) == count


@pytest.mark.parametrize(
    ("value", "words"),
    [(torch.nan, "not finite"), (torch.inf, "not finite"), (-torch.inf, "no token is left")],
)
@pytest.mark.parametrize("sampling", [None, *SAMPLED[:3]], ids=["greedy", "all", "top_k", "top_p"])
def test_logits_that_are_no_numbers_fail_their_sequence_alone(
    checkpoints: list[Path],
    prompts: list[list[int]],
    alone: dict[str, list[list[int]]],
    shm_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    sampling: SamplingParameters | None,
    value: float,
    words: str,
) -> None:
    path = checkpoints[0]
    forward = NativeModel.forward
    others_have = {token for row in [*prompts, *alone[path.name]] for token in row}
    marker = next(token for token in range(3, VOCAB_SIZE) if token not in others_have)

    def broken(self: NativeModel, step: StepInput) -> torch.Tensor:
        """Logits after the token that only one prompt has are spoilt."""
        logits = forward(self, step)
        at = step.token_ids[step.logit_rows] == marker
        return torch.where(at[:, None], value, logits)

    monkeypatch.setattr(NativeModel, "forward", broken)
    with EngineHarness(shm_dir) as engine:
        engine.load(path)
        others = add_all(engine, path.name, prompts)
        bad = engine.add(path.name, [5, marker], NEW_TOKENS, sampling=sampling)
        engine.turn(path.name, [bad, *others])
        engine.wait_ended([bad, *others])
        with pytest.raises(EngineError, match=words):
            engine.tokens(bad)
        assert tokens(engine, others) == alone[path.name]
