"""Constrained sequences on real engines: their text has its form, however it comes about."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from aegaeon.constraint import Constraint
from aegaeon.errors import EngineError, InvalidRequestError
from aegaeon.utils import get_tokenizer
from aegaeon_worker.engine import commands, events
from aegaeon_worker.engine.events import FinishReason
from aegaeon_worker.sampling.parameters import SamplingParameters
from tests.integration.text_model import text_model
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.reference import reference_tokens
from tests.worker.models.tiny import VOCAB_SIZE

pytestmark = pytest.mark.usefixtures("pace")

NEW_TOKENS = 120
MIB = 1 << 20
END = 2
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["é", "한국", "🙂"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
SUM = """start: number ("+" number){1,3}
number: /[1-9][0-9]{0,2}/"""
CONSTRAINTS = [
    Constraint.json_schema(PERSON),
    Constraint.regex(DATE),
    Constraint.grammar(SUM),
    Constraint.choice(["yes", "no", "maybe not"]),
    Constraint.json_schema(PERSON),
    Constraint.json_schema({"type": "integer", "minimum": -5, "maximum": 5}),
]
SAMPLED = [
    SamplingParameters(temperature=1.0, seed=50 + number, constraint=constraint)
    for number, constraint in enumerate(CONSTRAINTS)
]
KEPT = (1, 2, 2, 1, 7, 0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("models")
    return [Path(text_model(name, root, context=1024).path()) for name in ("one", "two")]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(3)
    return [
        [rng.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in (1, 7, 16, 40, 90, 200)
    ]


@pytest.fixture(scope="module")
def alone(
    models: list[Path], prompts: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> list[list[int]]:
    """What every sequence gets in a turn of its own, by either model: their weights are equal."""
    with EngineHarness(tmp_path_factory.mktemp("shm")) as engine:
        engine.load(models[0])
        handles = add_all(engine, models[0].name, prompts)
        for handle in handles:
            engine.turn(models[0].name, [handle])
        engine.wait_ended(handles)
        return [engine.tokens(handle) for handle in handles]


def add_all(engine: EngineHarness, model: str, prompts: list[list[int]]) -> list[int]:
    return [
        engine.add(model, prompt, NEW_TOKENS, stop_ids=[END], sampling=sampling)
        for prompt, sampling in zip(prompts, SAMPLED, strict=True)
    ]


def tokens(engine: EngineHarness, handles: list[int]) -> list[list[int]]:
    return [engine.tokens(handle) for handle in handles]


def text(model: Path, made: list[int]) -> str:
    return str(get_tokenizer(model).decode(made, skip_special_tokens=True))


def check(text: str, constraint: Constraint) -> None:
    if constraint == CONSTRAINTS[0]:
        person = json.loads(text)
        assert list(person) == ["name", "age", "tags"]
        assert len(person["name"]) <= 8
        assert 0 <= person["age"] <= 150
        assert set(person["tags"]) <= {"é", "한국", "🙂"}
        assert "\\u" not in text
    elif constraint == CONSTRAINTS[1]:
        assert re.fullmatch(DATE, text)
    elif constraint == CONSTRAINTS[2]:
        assert re.fullmatch(r"[1-9][0-9]{0,2}(\+[1-9][0-9]{0,2}){1,3}", text)
    elif constraint == CONSTRAINTS[3]:
        assert text in ("yes", "no", "maybe not")
    else:
        assert -5 <= int(text) <= 5


def test_every_text_has_its_form_and_ends_with_it(
    models: list[Path], alone: list[list[int]]
) -> None:
    for made, sampling in zip(alone, SAMPLED, strict=True):
        assert sampling.constraint is not None
        check(text(models[0], made), sampling.constraint)
        assert len(made) < NEW_TOKENS


def test_together_with_free_sequences_each_gets_what_it_gets_alone(
    models: list[Path], prompts: list[list[int]], alone: list[list[int]], shm_dir: Path
) -> None:
    with EngineHarness(shm_dir) as engine:
        engine.load(models[0])
        constrained = add_all(engine, models[0].name, prompts)
        free = [engine.add(models[0].name, prompt, 30) for prompt in prompts]
        mixed = [handle for pair in zip(free, constrained, strict=True) for handle in pair]
        engine.turn(models[0].name, mixed)
        engine.wait_ended(mixed)
        assert tokens(engine, constrained) == alone
        assert tokens(engine, free) == reference_tokens(models[0], prompts, 30)


@pytest.mark.parametrize("slab_bytes", [4 * MIB, 3 * 4096], ids=["swapped", "computed again"])
def test_switches_swaps_and_recomputation_change_no_token(
    models: list[Path],
    prompts: list[list[int]],
    alone: list[list[int]],
    shm_dir: Path,
    slab_bytes: int,
) -> None:
    with EngineHarness(shm_dir, device_memory_bytes=4 * MIB, cpu_slab_bytes=slab_bytes) as engine:
        members = {}
        for path in models:
            engine.load(path)
            members[path.name] = add_all(engine, path.name, prompts)
        engine.alternate(members, quota_ns=1)
        for handles in members.values():
            assert tokens(engine, handles) == alone
        started = [event for event in engine.log if isinstance(event, events.TurnStarted)]
        assert sum(event.switched for event in started) > 10


def test_a_batch_that_outgrows_the_device_changes_no_token(
    models: list[Path], prompts: list[list[int]], alone: list[list[int]], shm_dir: Path
) -> None:
    with EngineHarness(shm_dir, device_memory_bytes=4 * MIB) as engine:
        engine.load(models[0])
        rounds = [add_all(engine, models[0].name, prompts) for _ in range(6)]
        everyone = [handle for handles in rounds for handle in handles]
        engine.turn(models[0].name, everyone)
        engine.wait_ended(everyone)
        assert all(tokens(engine, handles) == alone for handles in rounds)


def test_another_engine_goes_on_in_the_middle_of_a_text(
    models: list[Path], prompts: list[list[int]], alone: list[list[int]], shm_dir: Path
) -> None:
    with EngineHarness(shm_dir) as engine:
        engine.load(models[1])
        handles = [
            engine.add(
                models[1].name,
                prompt,
                NEW_TOKENS,
                generated=made[:kept],
                stop_ids=[END],
                sampling=sampling,
            )
            for kept, prompt, made, sampling in zip(KEPT, prompts, alone, SAMPLED, strict=True)
        ]
        engine.turn(models[1].name, handles)
        engine.wait_ended(handles)
        for handle, kept, made in zip(handles, KEPT, alone, strict=True):
            assert engine.tokens(handle) == made[kept:]


def test_a_handed_off_sequence_goes_on_with_the_same_tokens(
    models: list[Path], prompts: list[list[int]], alone: list[list[int]], shm_dir: Path
) -> None:
    with (
        EngineHarness(shm_dir, worker_index=0) as prefill,
        EngineHarness(shm_dir, worker_index=1) as decode,
    ):
        name = models[0].name
        prefill.load(models[0])
        decode.load(models[0])
        handles = add_all(prefill, name, prompts)
        prefill.turn(name, handles, hands_off=True)
        prefill.wait_ended(handles)
        # One may be complete with its first token.
        made = [(handle, prefill.outputs[handle]) for handle in handles]
        went_on = {
            handle: decode.add(
                name,
                prompts[number],
                NEW_TOKENS,
                generated=prefill.tokens(handle),
                kv=output.place,
                stop_ids=[END],
                sampling=SAMPLED[number],
            )
            for number, (handle, output) in enumerate(made)
            if output.place is not None
        }
        decode.turn(name, list(went_on.values()))
        decode.wait_ended(went_on.values())
        for handle, expected in zip(handles, alone, strict=True):
            rest = decode.tokens(went_on[handle]) if handle in went_on else []
            assert prefill.tokens(handle) + rest == expected
        prefill.send(commands.ReleaseSequences(handles))


def test_a_complete_text_ends_without_an_end_token_and_before_its_minimum(
    models: list[Path], shm_dir: Path
) -> None:
    sampling = SamplingParameters(constraint=Constraint.regex("ab|cde"))
    with EngineHarness(shm_dir) as engine:
        engine.load(models[0])
        handles = [
            engine.add(models[0].name, [5], 50, min_new_tokens=minimum, sampling=sampling)
            for minimum in (0, 40)
        ]
        engine.turn(models[0].name, handles)
        engine.wait_ended(handles)
        for handle in handles:
            assert text(models[0], engine.tokens(handle)) in ("ab", "cde")
            assert engine.outputs[handle].finish is FinishReason.STOP


def test_a_model_that_wants_nothing_but_white_space_still_gets_to_an_end(
    models: list[Path], shm_dir: Path
) -> None:
    tokenizer = get_tokenizer(models[0])
    spaces = [tokenizer.convert_tokens_to_ids(piece) for piece in ("Ġ", "Ċ", "ĉ")]
    sampling = SamplingParameters(
        logit_bias=tuple((token, 100.0) for token in spaces), constraint=CONSTRAINTS[0]
    )
    with EngineHarness(shm_dir) as engine:
        engine.load(models[0])
        handle = engine.add(models[0].name, [5], 500, stop_ids=[END], sampling=sampling)
        engine.turn(models[0].name, [handle])
        engine.wait_ended([handle])
        made = text(models[0], engine.tokens(handle))
        check(made, CONSTRAINTS[0])
        assert "\n" + "\t" * 32 in made or " " in made


def test_a_wrong_constraint_fails_its_own_request_alone(
    models: list[Path], prompts: list[list[int]], shm_dir: Path
) -> None:
    wrong = [
        Constraint.json_schema({"type": "objekt"}),
        Constraint.json_schema("nothing"),
        Constraint.regex("(a"),
        Constraint.grammar("start: what"),
        Constraint.grammar("start: <[9999]>"),
    ]
    with EngineHarness(shm_dir) as engine:
        engine.load(models[0])
        name = models[0].name
        bad = [
            engine.add(name, [5], sampling=SamplingParameters(constraint=constraint))
            for constraint in wrong
        ]
        # The tokens that it comes with do not lead to what it asks for.
        lost = SamplingParameters(constraint=Constraint.regex("[0-9]+"))
        bad.append(engine.add(name, [5], generated=[300], sampling=lost))
        good = [engine.add(name, prompt, 20) for prompt in prompts]
        engine.turn(name, bad + good)
        engine.wait_ended(bad + good)
        for handle in bad:
            assert isinstance(engine.outputs[handle].error, InvalidRequestError)
        assert tokens(engine, good) == reference_tokens(models[0], prompts, 20)


def test_what_is_too_complex_at_once_or_later_fails_alone(
    models: list[Path], prompts: list[list[int]], shm_dir: Path
) -> None:
    rules = [start + '"a"?' * 5_000 for start in ("start: ", 'start: "b" ')]
    with EngineHarness(shm_dir) as engine:
        engine.load(models[0])
        name = models[0].name
        bad = [
            engine.add(name, [5], 20, sampling=SamplingParameters(constraint=constraint))
            for constraint in map(Constraint.grammar, rules)
        ]
        good = [engine.add(name, prompt, 20) for prompt in prompts]
        engine.turn(name, [*bad, *good])
        engine.wait_ended([*bad, *good])
        for handle in bad:
            assert isinstance(engine.outputs[handle].error, EngineError | InvalidRequestError)
        assert tokens(engine, good) == reference_tokens(models[0], prompts, 20)


def test_a_form_that_leads_nowhere_is_its_requests_own_fault(
    models: list[Path], prompts: list[list[int]], shm_dir: Path
) -> None:
    rules = [
        'start: "a" more\nmore: more',  # never ends, from the second token on
        'start: "a" <[2]> "b"',  # an end in the middle
        'start: "a" start',  # costs more and more
    ]
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/a"}},
        "required": ["a"],
        "$defs": {"a": {"$ref": "#/$defs/a"}},
    }
    wrong = [*map(Constraint.grammar, rules), Constraint.json_schema(schema)]
    with EngineHarness(shm_dir) as engine:
        engine.load(models[0])
        name = models[0].name
        bad = [
            engine.add(name, [5], 60, sampling=SamplingParameters(constraint=constraint))
            for constraint in wrong
        ]
        good = [engine.add(name, prompt, 20) for prompt in prompts]
        engine.turn(name, [*bad, *good])
        engine.wait_ended([*bad, *good])
        for handle in bad:
            error = engine.outputs[handle].error
            assert isinstance(error, InvalidRequestError)
            assert error.metadata["field"].startswith("sampling.constraint")
        assert tokens(engine, good) == reference_tokens(models[0], prompts, 20)


def test_a_sequence_may_be_cancelled_while_its_constraint_is_compiled(
    models: list[Path], shm_dir: Path
) -> None:
    with EngineHarness(shm_dir) as engine:
        engine.load(models[0])
        name = models[0].name
        handle = engine.add(name, [5], sampling=SAMPLED[0])
        engine.turn(name, [handle])
        engine.send(commands.CancelSequences([handle]))
        engine.wait_ended([handle])
        assert engine.outputs[handle].finish is FinishReason.CANCELLED
        again = engine.add(name, [5], NEW_TOKENS, stop_ids=[END], sampling=SAMPLED[0])
        engine.turn(name, [again])
        engine.wait_ended([again])
        check(text(models[0], engine.tokens(again)), CONSTRAINTS[0])


def test_log_probabilities_stay_those_of_the_model(models: list[Path], shm_dir: Path) -> None:
    told = replace(SAMPLED[3], logprobs=2)
    with EngineHarness(shm_dir) as engine:
        engine.load(models[0])
        free = engine.add(models[0].name, [5], 1, sampling=SamplingParameters(logprobs=2))
        bound = engine.add(models[0].name, [5], 1, sampling=told)
        engine.turn(models[0].name, [free, bound])
        engine.wait_ended([free, bound])
        (of_free,), (of_bound,) = (
            engine.outputs[handle].log_probabilities for handle in (free, bound)
        )
        assert of_free.top_token_ids == of_bound.top_token_ids
        assert of_bound.logprob < of_free.logprob
