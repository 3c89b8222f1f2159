"""What every request of the load has to end with, whatever happens to it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aegaeon import LLMService, Request, SamplingParams, StepOutput
from aegaeon.errors import AegaeonError
from aegaeon.model_spec import ModelSpec
from tests.integration.models import tiny_model
from tests.integration.text_model import text_model
from tests.integration.workload import ask, tokens_of

#: Tokens of an undisturbed run; requests ask for some of them.
MOST_TOKENS = 160
_CONTEXT = 512
#: Prompts that are scored, and with how many most probable tokens.
_SCORED_LENGTH = 40
_ALTERNATIVES = 2
_TOLERANCE = 1e-4


def make_models(folder: Path) -> list[ModelSpec]:
    """Three families; the first has a tokenizer, for the gateway."""
    return [
        text_model("text", folder, context=_CONTEXT),
        tiny_model("qwen3", "qwen3", folder, seed=1),
        tiny_model("gemma2", "gemma2", folder, seed=2),
    ]


@dataclass(frozen=True)
class Question:
    """A prompt for a model. Without a seed it is greedy; long ones are then scored as well."""

    model: ModelSpec
    prompt: tuple[int, ...]
    seed: int | None

    def request(self, new_tokens: int) -> Request:
        sampling = None
        if self.seed is not None:
            sampling = SamplingParams(temperature=0.9, top_p=0.9, seed=self.seed)
        count = _ALTERNATIVES if self.scored else None
        return ask(self.model, self.prompt, new_tokens, sampling=sampling, prompt_logprobs=count)

    @property
    def scored(self) -> bool:
        """Log-probabilities of the prompt are asked for."""
        return self.seed is None and len(self.prompt) >= _SCORED_LENGTH


def scores_of(output: list[StepOutput] | AegaeonError) -> list[float]:
    """What a request was told of its prompt, from its second token on."""
    tokens_of(output)
    assert not isinstance(output, AegaeonError)
    first, *told = output[0].prompt_logprobs or ()
    assert first is None
    assert all(entry is not None and len(entry.top_logprobs) == _ALTERNATIVES for entry in told)
    return [entry.logprob for entry in told if entry is not None]


class Oracle:
    """Questions with their answers. A shorter answer is the beginning of a longer one."""

    def __init__(self, models: Sequence[ModelSpec]) -> None:
        chance = random.Random(0)
        self.questions = [
            Question(model, tuple(chance.choices(range(5, 500), k=length)), seed)
            for model in models
            for length in (1, 7, 40, 150)
            for seed in (None, length)
        ]
        self._answers: dict[Question, list[int]] = {}
        self._scores: dict[Question, list[float]] = {}

    def learn(self, service: LLMService) -> None:
        """Ask everything, while nothing disturbs."""
        outputs = service.serve([q.request(MOST_TOKENS) for q in self.questions])
        for question, output in zip(self.questions, outputs, strict=True):
            self._answers[question] = tokens_of(output)
            if question.scored:
                self._scores[question] = scores_of(output)

    def check_scores(self, question: Question, got: Sequence[float]) -> None:
        """Raise AssertionError unless ``got`` is of every token of the prompt but the first."""
        wanted = self._scores[question]
        assert len(got) == len(wanted) == len(question.prompt) - 1
        worst = max(abs(one - other) for one, other in zip(got, wanted, strict=True))
        assert worst < _TOLERANCE, (
            f"{replace(question, prompt=question.prompt[:8])}: off by {worst}"
        )

    def check(self, question: Question, new_tokens: int, got: Sequence[int]) -> None:
        """Raise AssertionError unless ``got`` is the answer, token by token."""
        wanted = self._answers[question][:new_tokens]
        if list(got) == wanted:
            return
        pairs = enumerate(zip(got, wanted, strict=False))
        same = next((i for i, (token, right) in pairs if token != right), None)
        short = replace(question, prompt=question.prompt[:8])
        raise AssertionError(
            f"{short}: {len(got)} of {new_tokens} tokens, the first wrong one at {same}"
        )
