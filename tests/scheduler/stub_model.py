"""A model that makes predictable tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aegaeon.v1 import worker_pb2

VOCAB = 32_000
CONTEXT = 4_096
EOS = (2, 7)


def token_at(prompt: Sequence[int], index: int) -> int:
    """The token number ``index`` of a prompt's answer; never an end-of-sequence id."""
    return 100 + (sum(prompt) * 31 + len(prompt) * 7 + index * 13) % (VOCAB - 100)


def answer(prompt: Sequence[int], count: int) -> list[int]:
    """The first ``count`` tokens of a prompt's answer."""
    return [token_at(prompt, index) for index in range(count)]


@dataclass(slots=True, eq=False)
class StubSequence:
    spec: worker_pb2.SequenceSpec
    base: int
    made: int

    def next_token(self) -> int:
        token = 100 + (self.base + self.made * 13) % (VOCAB - 100)
        self.made += 1
        return token

    def finish(self, token: int) -> int:
        stop = self.spec.stop
        full = len(self.spec.prompt_token_ids) + self.made >= stop.max_model_len
        if token in stop.stop_token_ids and self.made > stop.min_new_tokens:
            return 1
        return 2 if full or self.made >= stop.max_new_tokens else 0
