"""What sampling is meant to do, token by token, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence

from aegaeon_worker.sampling.parameters import SamplingParameters

_MASK = (1 << 64) - 1


def splitmix(start: int, index: int) -> int:
    """Output number ``index`` of SplitMix64, with unsigned numbers, as published."""
    value = start + (index + 1) * 0x9E3779B97F4A7C15 & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def uniform(seed: int, position: int, index: int) -> float:
    """The number for a token: streams within streams."""
    start = splitmix(splitmix(seed, 0), position)
    return ((splitmix(start, index) >> 12) + 0.5) / 2**52


def drawn(weights: Sequence[float], seed: int, position: int, chunk: int = 128) -> int:
    """The winner of a race between chunks of tokens, and of one within the first chunk."""

    def first(rates: Sequence[float], indexes: Sequence[int]) -> int:
        speeds = [
            rate / -math.log(uniform(seed, position, index))
            for rate, index in zip(rates, indexes, strict=True)
        ]
        return speeds.index(max(speeds))

    parts = [weights[start : start + chunk] for start in range(0, len(weights), chunk)]
    begin = chunk * first([sum(part) for part in parts], [-1 - part for part in range(len(parts))])
    part = weights[begin : begin + chunk]
    return begin + first(part, range(begin, begin + len(part)))


def adjusted(
    logits: Sequence[float],
    sampling: SamplingParameters,
    prompt: Sequence[int],
    generated: Sequence[int],
) -> list[float]:
    """Bias, then repetition penalty, then frequency and presence penalties."""
    result = list(logits)
    for token, bias in sampling.logit_bias:
        result[token] += bias
    for token in {*prompt, *generated}:
        factor = sampling.repetition_penalty
        result[token] = result[token] / factor if result[token] > 0 else result[token] * factor
    for token in set(generated):
        result[token] -= sampling.frequency_penalty * generated.count(token)
        result[token] -= sampling.presence_penalty
    return result


def distribution(logits: Sequence[float], sampling: SamplingParameters) -> list[float]:
    """Probabilities that temperature and filters leave."""
    scores = [logit / sampling.temperature for logit in logits]
    weights = [math.exp(score - max(scores)) for score in scores]
    weights = [weight if weight >= sampling.min_p else 0.0 for weight in weights]
    if 0 < sampling.top_k < len(weights):
        least = sorted(weights, reverse=True)[sampling.top_k - 1]
        weights = [weight if weight >= least else 0.0 for weight in weights]
    if sampling.top_p < 1:
        goal, reached = sampling.top_p * sum(weights), 0.0
        for least in sorted(weights, reverse=True):
            reached += least
            if reached >= goal:
                break
        weights = [weight if weight >= least else 0.0 for weight in weights]
    return [weight / sum(weights) for weight in weights]
