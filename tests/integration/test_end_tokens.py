"""Every end-of-sequence id that a model's files name ends a request, where that is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from aegaeon import LLMService, StepOutput
from aegaeon.config import get_model_config
from aegaeon.errors import AegaeonError
from aegaeon.model_spec import ModelSpec
from tests.integration.models import expected_tokens, tiny_model
from tests.integration.workload import ask, prompts, tokens_of

NEW_TOKENS = 24
PROMPTS = prompts(8, seed=3)
UNUSED = 511


@dataclass(frozen=True)
class Ends:
    """A deployed model, what it generates without any end, and the ids that its files name."""

    spec: ModelSpec
    endless: list[list[int]]
    config: int
    generation: int
    tokenizer: int

    @property
    def union(self) -> set[int]:
        return {self.config, self.generation, self.tokenizer}


@pytest.fixture(scope="module")
def ends(service: LLMService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ends]:
    spec = tiny_model("ends", "qwen2", tmp_path_factory.mktemp("ends"), seed=7)
    endless = expected_tokens(spec, PROMPTS, NEW_TOKENS)
    config, generation, tokenizer = (endless[number][6 + number] for number in range(3))
    assert len({config, generation, tokenizer, UNUSED}) == 4
    write_ends(Path(spec.path()), config, generation, tokenizer)
    asyncio.run(service.deploy_model_replicas(spec))
    yield Ends(spec, endless, config, generation, tokenizer)
    asyncio.run(service.undeploy_model_replicas(spec))


def write_ends(folder: Path, config: int, generation: int, tokenizer: int) -> None:
    """One id in each file; the generation config lists several, the tokenizer's not among them."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": config}))
    listed = {"eos_token_id": [UNUSED, generation]}
    (folder / "generation_config.json").write_text(json.dumps(listed))
    entry = {"eos_token": "<end>", "added_tokens_decoder": {str(tokenizer): {"content": "<end>"}}}
    (folder / "tokenizer_config.json").write_text(json.dumps(entry))


def until_any(tokens: list[int], ids: set[int]) -> list[int]:
    """Up to and including the first of ``ids``."""
    for position, token in enumerate(tokens):
        if token in ids:
            return tokens[: position + 1]
    return tokens


def check(outputs: list[list[StepOutput] | AegaeonError], wanted: list[list[int]]) -> None:
    for output, tokens in zip(outputs, wanted, strict=True):
        assert tokens_of(output) == tokens
        assert not isinstance(output, AegaeonError)
        assert output[-1].finish_reason == ("length" if len(tokens) == NEW_TOKENS else "stop")


def test_any_id_that_a_file_names_ends_a_request(service: LLMService, ends: Ends) -> None:
    wanted = [until_any(tokens, ends.union) for tokens in ends.endless]
    assert {tokens[-1] for tokens in wanted} >= ends.union
    requests = [ask(ends.spec, prompt, NEW_TOKENS, ignore_eos=False) for prompt in PROMPTS]
    check(service.serve(requests), wanted)


def test_client_and_worker_read_the_same_ids(service: LLMService, ends: Ends) -> None:
    [model] = [model for model in service.runtime().models if model.spec.name == ends.spec.name]
    ids = tuple(sorted(ends.union | {UNUSED}))
    assert tuple(model.facts.eos_token_ids) == get_model_config(ends.spec).eos_token_ids == ids


def test_ignoring_ends_leaves_the_caller_s_own(service: LLMService, ends: Ends) -> None:
    endless = [ask(ends.spec, prompt, NEW_TOKENS) for prompt in PROMPTS]
    check(service.serve(endless), ends.endless)
    own = [replace(request, stop_token_ids=[ends.tokenizer]) for request in endless]
    check(service.serve(own), [until_any(tokens, {ends.tokenizer}) for tokens in ends.endless])


def test_given_ids_replace_the_model_s(service: LLMService, ends: Ends) -> None:
    given = [
        ask(ends.spec, prompt, NEW_TOKENS, ignore_eos=False, eos_token_ids=[ends.config])
        for prompt in PROMPTS
    ]
    check(service.serve(given), [until_any(tokens, {ends.config}) for tokens in ends.endless])


def test_no_end_comes_before_the_minimum(service: LLMService, ends: Ends) -> None:
    requests = [
        ask(ends.spec, prompt, NEW_TOKENS, ignore_eos=False, min_tokens=10) for prompt in PROMPTS
    ]
    for output in service.serve(requests):
        tokens = tokens_of(output)
        assert len(tokens) > 10
        assert not ends.union & set(tokens[:10])
