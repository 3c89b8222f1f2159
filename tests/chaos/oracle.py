"""What every request of the load has to end with, whatever happens to it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aegaeon import LLMService, Request, SamplingParams
from aegaeon.model_spec import ModelSpec
from tests.integration.models import tiny_model
from tests.integration.text_model import text_model
from tests.integration.workload import ask, tokens_of

#: Tokens of an undisturbed run; requests ask for some of them.
MOST_TOKENS = 160
_CONTEXT = 512


def make_models(folder: Path) -> list[ModelSpec]:
    """Three families; the first has a tokenizer, for the gateway."""
    return [
        text_model("text", folder, context=_CONTEXT),
        tiny_model("qwen3", "qwen3", folder, seed=1),
        tiny_model("gemma2", "gemma2", folder, seed=2),
    ]


@dataclass(frozen=True)
class Question:
    """A prompt for a model. Without a seed it is greedy."""

    model: ModelSpec
    prompt: tuple[int, ...]
    seed: int | None

    def request(self, new_tokens: int) -> Request:
        sampling = None
        if self.seed is not None:
            sampling = SamplingParams(temperature=0.9, top_p=0.9, seed=self.seed)
        return ask(self.model, self.prompt, new_tokens, sampling=sampling)


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

    def learn(self, service: LLMService) -> None:
        """Ask everything, while nothing disturbs."""
        outputs = service.serve([q.request(MOST_TOKENS) for q in self.questions])
        for question, output in zip(self.questions, outputs, strict=True):
            self._answers[question] = tokens_of(output)

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
