"""What sampling is meant to do, token by token, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence

from aegaeon_worker.sampling.parameters import SamplingParameters

_MASK = (1 << 64) - 1


def splitmix(seed: int, position: int) -> float:
    """SplitMix64 with unsigned numbers, as published; the seed is the first output of its own
    stream, and the position counts from there."""

    def mix(value: int) -> int:
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
        return value ^ value >> 31

    golden = 0x9E3779B97F4A7C15
    start = mix(seed + golden & _MASK)
    return (mix(start + (position + 1) * golden & _MASK) >> 12) / 2**52


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
