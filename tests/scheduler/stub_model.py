"""A model that makes predictable tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aegaeon.v1 import inference_pb2, worker_pb2

VOCAB = 32_000
CONTEXT = 4_096
EOS = (2, 7)


def token_at(prompt: Sequence[int], index: int) -> int:
    """The token number ``index`` of a prompt's answer; never an end-of-sequence id."""
    return 100 + (sum(prompt) * 31 + len(prompt) * 7 + index * 13) % (VOCAB - 100)


def answer(prompt: Sequence[int], count: int) -> list[int]:
    """The first ``count`` tokens of a prompt's answer."""
    return [token_at(prompt, index) for index in range(count)]


def logprob(token: int) -> float:
    """Of a token, exact in four bytes; its most probable rivals are the tokens that follow it."""
    return -token / 4


def told_of(message: inference_pb2.LogProbabilities, tokens: Sequence[int]) -> dict[int, int]:
    """How many rivals a message tells of for each token, by index; checks all it says of them."""
    assert len(message.indexes) == len(message.logprobs) == len(message.top_counts)
    assert list(message.indexes) == sorted(set(message.indexes))
    rivals = list(zip(message.top_token_ids, message.top_logprobs, strict=True))
    for index, own, count in zip(
        message.indexes, message.logprobs, message.top_counts, strict=True
    ):
        token = tokens[index]
        assert own == logprob(token)
        mine, rivals = rivals[:count], rivals[count:]
        assert mine == [(token + i, logprob(token + i)) for i in range(1, count + 1)]
    assert not rivals
    return dict(zip(message.indexes, message.top_counts, strict=True))


def tell(step: worker_pb2.StepBatch, specs: Sequence[worker_pb2.SequenceSpec]) -> None:
    """Add the log-probabilities that a step's sequences ask for."""
    told = (
        step.log_probabilities
        if any(spec.sampling.HasField("logprobs") for spec in specs)
        else None
    )
    for index, (token, spec) in enumerate(zip(step.token_ids, specs, strict=True)):
        if told is None or not spec.sampling.HasField("logprobs"):
            continue
        count = spec.sampling.logprobs
        told.indexes.append(index)
        told.logprobs.append(logprob(token))
        told.top_counts.append(count)
        told.top_token_ids.extend(token + i for i in range(1, count + 1))
        told.top_logprobs.extend(logprob(token + i) for i in range(1, count + 1))


def tell_prompts(step: worker_pb2.StepBatch, specs: Sequence[worker_pb2.SequenceSpec]) -> None:
    """Add the log-probabilities of their prompts that sequences ask for, in pieces of 3 tokens."""
    for spec in specs:
        if not spec.HasField("prompt_logprobs"):
            continue
        told, count = step.prompt_log_probabilities, spec.prompt_logprobs
        for start in range(max(1, spec.told_prompt_tokens), len(spec.prompt_token_ids), 3):
            tokens = spec.prompt_token_ids[start : start + 3]
            told.owners.append(spec.handle)
            told.starts.append(start)
            told.counts.append(len(tokens))
            told.logprobs.extend(map(logprob, tokens))
            told.top_counts.append(count)
            rivals = [token + i for token in tokens for i in range(1, count + 1)]
            told.top_token_ids.extend(rivals)
            told.top_logprobs.extend(map(logprob, rivals))


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
