"""Constraints are compiled once per tokenizer, and masks say what may come next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aegaeon.constraint import Constraint
from aegaeon.errors import ModelUnsupportedError
from aegaeon.utils import get_tokenizer
from aegaeon_worker.engine.events import LoadedModel
from aegaeon_worker.engine.model_spec import ModelFacts, ModelSpec
from aegaeon_worker.grammar import compiler as module
from aegaeon_worker.grammar.compiler import Compiler
from aegaeon_worker.grammar.text_state import TextState
from tests.integration.text_model import text_model
from tests.worker.models.tiny import VOCAB_SIZE

END = 2
STOP = 300


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[LoadedModel]:
    root = tmp_path_factory.mktemp("models")
    return [loaded(Path(text_model(name, root).path())) for name in ("one", "two")]


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    compiler = Compiler()
    yield compiler
    compiler.close()


def loaded(path: Path) -> LoadedModel:
    facts = ModelFacts(path.name, 1, 1, 16, VOCAB_SIZE, 1024, (END,))
    return LoadedModel(ModelSpec(path.name, path), facts)


def state(compiler: Compiler, model: LoadedModel, constraint: Constraint) -> TextState:
    return compiler.compile(model, constraint, ()).result(timeout=60)


def allowed(state: TextState) -> set[int]:
    bits = state.mask({END, STOP})
    return {token for token in range(VOCAB_SIZE) if bits[token >> 3] >> (token & 7) & 1}


def test_models_of_one_tokenizer_share_what_is_compiled(
    compiler: Compiler, models: list[LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []
    real = module.grammar_of
    monkeypatch.setattr(module, "grammar_of", lambda c: (compiled.append(c), real(c))[1])
    for constraint in (Constraint.regex("a+"), Constraint.regex("b"), Constraint.regex("a+")):
        for model in models:
            state(compiler, model, constraint)
    assert compiled == [Constraint.regex("a+"), Constraint.regex("b")]


def test_states_of_one_constraint_are_apart(compiler: Compiler, models: list[LoadedModel]) -> None:
    tokenizer = get_tokenizer(models[0].spec.path)
    a, b = (tokenizer.convert_tokens_to_ids(letter) for letter in "ab")
    one, two = (state(compiler, models[0], Constraint.regex("ab")) for _ in range(2))
    assert allowed(one) == allowed(two) == {a}
    assert not one.take(a)
    assert allowed(one) == {b}
    assert allowed(two) == {a}
    assert one.take(b)


def test_what_ends_a_sequence_is_allowed_where_the_text_is_complete(
    compiler: Compiler, models: list[LoadedModel]
) -> None:
    tokenizer = get_tokenizer(models[0].spec.path)
    digits = {tokenizer.convert_tokens_to_ids(str(digit)) for digit in range(10)}
    number = state(compiler, models[0], Constraint.regex("[0-9]{1,2}"))
    assert allowed(number) == digits
    assert not number.take(min(digits))
    assert allowed(number) == digits | {END, STOP}


def test_a_tokenizer_that_cannot_be_read_is_the_models_fault(
    compiler: Compiler, tmp_path: Path
) -> None:
    with pytest.raises(ModelUnsupportedError, match="its tokenizer"):
        state(compiler, loaded(tmp_path), Constraint.regex("a"))
