"""From logits to the next token of every sequence of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch

from aegaeon.errors import EngineError
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.grammar.masks import PendingMasks
from aegaeon_worker.sampling.adjustments import add_bias, penalize
from aegaeon_worker.sampling.draw import best, draw
from aegaeon_worker.sampling.filters import kept_weights
from aegaeon_worker.sampling.log_probabilities import TokenLogProbabilities, log_probabilities
from aegaeon_worker.sampling.parameters import SamplingParameters
from aegaeon_worker.sampling.randomness import streams


class Choice(NamedTuple):
    """A sequence's next token, and how probable it was where that is asked."""

    token_id: int
    log_probabilities: TokenLogProbabilities | None = None


@torch.inference_mode()
def choose_tokens(
    logits: torch.Tensor, sequences: Seq[Sequence], masks: PendingMasks | None = None
) -> list[Choice | EngineError]:
    """The next token per row of float32 ``logits`` [R, vocab], or why that row has none.

    Greedy rows get the most probable token, the lowest id among equals. Tokens that would end a
    sequence before its minimum are excluded, and what ``masks`` exclude. ``logits`` is consumed.
    """
    if not sequences:  # a step of nothing but parts of prompts
        return []
    sampling = [
        (row, sequence.sampling)
        for row, sequence in enumerate(sequences)
        if sequence.sampling is not None
    ]
    asked = [(row, p.logprobs) for row, p in sampling if p.logprobs is not None]
    # A copy, of what the model itself has said.
    raw = logits[[row for row, _ in asked]] if asked else None
    failed = masks.apply(logits) if masks is not None else {}
    for row, sequence in enumerate(sequences):
        if not sequence.may_stop and sequence.stop.stop_ids:
            logits[row, list(sequence.stop.stop_ids)] = -torch.inf
    if sampling:
        _adjust(logits, sequences, sampling)
    tokens, highest = best(logits)
    drawn = [(row, parameters) for row, parameters in sampling if not parameters.is_greedy]
    if drawn:
        rows = torch.tensor([row for row, _ in drawn], device=logits.device)
        tokens[rows] = _draw(logits, highest, rows, sequences, drawn)
    # Ids are exact in float64, and one copy to the host is cheaper than two.
    found = torch.stack((tokens.to(torch.float64), highest.to(torch.float64)), dim=1).tolist()
    choices = [
        Choice(int(token)) if math.isfinite(value) else _no_token(value) for token, value in found
    ]
    if raw is not None:
        at = [row for row, _ in asked]
        told = log_probabilities(raw, tokens[at], [count for _, count in asked])
        for row, probabilities in zip(at, told, strict=True):
            if isinstance(choice := choices[row], Choice):
                choices[row] = choice._replace(log_probabilities=probabilities)
    return [failed.get(row, choice) for row, choice in enumerate(choices)]


def _adjust(
    logits: torch.Tensor,
    sequences: Seq[Sequence],
    sampling: Seq[tuple[int, SamplingParameters]],
) -> None:
    if biased := [entry for entry in sampling if entry[1].logit_bias]:
        add_bias(logits, biased)
    if penalized := [
        (row, parameters, sequences[row].token_counts())
        for row, parameters in sampling
        if parameters.penalizes
    ]:
        penalize(logits, penalized)


def _draw(
    logits: torch.Tensor,
    highest: torch.Tensor,
    rows: torch.Tensor,
    sequences: Seq[Sequence],
    drawn: Seq[tuple[int, SamplingParameters]],
) -> torch.Tensor:
    """Tokens of ``rows``. ``logits`` is consumed where all rows are drawn."""
    device = logits.device
    temperature = torch.tensor([p.temperature for _, p in drawn], dtype=torch.float32)
    scores = logits if len(drawn) == logits.shape[0] else logits[rows]
    # The highest first: a low temperature may then reach -inf, but never inf.
    scores.sub_(highest[rows][:, None]).div_(temperature.to(device)[:, None])
    weights = kept_weights(scores, [parameters for _, parameters in drawn])
    seeds = torch.tensor([parameters.seed for _, parameters in drawn])
    positions = torch.tensor([len(sequences[row].tokens) for row, _ in drawn])
    return draw(weights, streams(seeds, positions).to(device))


def _no_token(highest: float) -> EngineError:
    if highest == -math.inf:
        return EngineError("no token is left to choose: every logit is -inf")
    return EngineError(
        f"the model's logits are not finite numbers (the highest is {highest}); its weights or the "
        "numeric type that it is served in may be at fault"
    )
