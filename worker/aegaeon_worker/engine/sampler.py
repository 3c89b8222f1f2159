"""From logits to the next token of every sequence of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from types import MappingProxyType
from typing import NamedTuple

import torch

from aegaeon.errors import AegaeonError, EngineError
from aegaeon_worker.device.host_link import Download, upload
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.engine.step_plan import StepTokens
from aegaeon_worker.grammar.masks import PendingMasks
from aegaeon_worker.sampling.adjustments import (
    PenalizedRow,
    add_bias,
    exclude,
    penalize,
)
from aegaeon_worker.sampling.draw import best
from aegaeon_worker.sampling.draws import Draws, drawn_tokens
from aegaeon_worker.sampling.filters import Filters
from aegaeon_worker.sampling.log_probabilities import (
    Measured,
    TokenLogProbabilities,
    measure,
    tell,
)
from aegaeon_worker.sampling.parameters import SamplingParameters


class Choice(NamedTuple):
    """A sequence's next token, and how probable it was where that is asked."""

    token_id: int
    log_probabilities: TokenLogProbabilities | None = None


class PendingChoices:
    """The tokens of one step: on the device, and on their way to the host."""

    def __init__(
        self,
        tokens: torch.Tensor,
        found: torch.Tensor,
        measured: Measured | None = None,
        asked: Seq[tuple[int, int]] = (),
        failed: Mapping[int, AegaeonError] = MappingProxyType({}),
    ) -> None:
        """``found`` float64 [R, 2] are the tokens and the highest logits of their rows.

        ``measured`` is of the rows in ``asked``, each with how many tokens it asks for. Rows that
        ``failed`` have no token.
        """
        self.tokens = tokens
        """int64 [R] on the device, until the step after the next one is issued."""
        self._asked = asked
        self._failed = failed
        self._download = Download([found, *(measured or ())])

    def wait(self) -> list[Choice | AegaeonError]:
        """Block until the tokens are known; a row without a token says why."""
        found, *measured = self._download.wait()
        # Ids are exact in float64, and one copy to the host is cheaper than two.
        choices = [
            Choice(int(token)) if math.isfinite(value) else _no_token(value)
            for token, value in found.tolist()
        ]
        if measured:
            told = tell(Measured(*measured), [count for _, count in self._asked])
            for (row, _), probabilities in zip(self._asked, told, strict=True):
                if isinstance(choice := choices[row], Choice):
                    choices[row] = choice._replace(log_probabilities=probabilities)
        return [self._failed.get(row, choice) for row, choice in enumerate(choices)]


def takes_best(sequences: Seq[Sequence]) -> bool:
    """Whether every sequence simply gets the most probable token, and nothing else is asked."""
    return all(
        sequence.sampling is None and (sequence.may_stop or not sequence.stop.stop_ids)
        for sequence in sequences
    )


@torch.inference_mode()
def choose_tokens(
    logits: torch.Tensor,
    sequences: Seq[Sequence],
    masks: PendingMasks | None = None,
    before: StepTokens | None = None,
) -> PendingChoices:
    """The next token per row of float32 ``logits`` [R, vocab], without waiting for the device.

    ``before`` has the tokens under way; it may be None when there are none.
    Greedy rows get the most probable token, the lowest id among equals. Tokens that would end a
    sequence before its minimum are excluded, and what ``masks`` exclude. ``logits`` is consumed.
    """
    device = logits.device
    if not sequences:  # a step of nothing but parts of prompts
        none = logits.new_empty(0, dtype=torch.int64)
        return PendingChoices(none, logits.new_empty(0, 2, dtype=torch.float64))
    sampling = [
        (row, sequence.sampling)
        for row, sequence in enumerate(sequences)
        if sequence.sampling is not None
    ]
    asked = [(row, p.logprobs) for row, p in sampling if p.logprobs is not None]
    at = upload([row for row, _ in asked], device, torch.int64) if asked else None
    # A copy, of what the model itself has said.
    raw = logits[at] if at is not None else None
    failed = masks.apply(logits) if masks is not None else {}
    held = [
        (row, token)
        for row, sequence in enumerate(sequences)
        if not sequence.may_stop
        for token in sequence.stop.stop_ids
    ]
    if held:
        exclude(logits, held)
    if sampling:
        _adjust(logits, sequences, sampling, before)
    tokens, highest = best(logits)
    drawn = [(row, parameters) for row, parameters in sampling if not parameters.is_greedy]
    if drawn:
        rows = upload([row for row, _ in drawn], device)
        tokens[rows] = _draw(logits, highest, rows, sequences, drawn)
    found = torch.stack((tokens.to(torch.float64), highest.to(torch.float64)), dim=1)
    measured = None
    if raw is not None and at is not None:
        measured = measure(raw, tokens[at], max(count for _, count in asked))
    return PendingChoices(tokens, found, measured, asked, failed)


def _adjust(
    logits: torch.Tensor,
    sequences: Seq[Sequence],
    sampling: Seq[tuple[int, SamplingParameters]],
    before: StepTokens | None,
) -> None:
    if biased := [entry for entry in sampling if entry[1].logit_bias]:
        add_bias(logits, biased)
    if penalized := [
        PenalizedRow(
            row,
            parameters,
            sequences[row].token_counts(),
            before.rows[sequences[row]] if before and sequences[row].num_under_way else None,
        )
        for row, parameters in sampling
        if parameters.penalizes
    ]:
        penalize(logits, penalized, before.tokens if before is not None else None)


def _draw(
    logits: torch.Tensor,
    highest: torch.Tensor,
    rows: torch.Tensor,
    sequences: Seq[Sequence],
    drawn: Seq[tuple[int, SamplingParameters]],
) -> torch.Tensor:
    """Tokens of ``rows``. ``logits`` is consumed where all rows are drawn."""
    device = logits.device
    parameters = [p for _, p in drawn]
    streams = [[p.seed for p in parameters], [sequences[row].num_tokens for row, _ in drawn]]
    draws = Draws(
        upload([p.temperature for p in parameters], device, torch.float32),
        Filters.of(parameters, logits.shape[1], device),
        *upload(torch.tensor(streams), device),
    )
    scores = logits if len(drawn) == logits.shape[0] else logits[rows]
    return drawn_tokens(scores, highest[rows], draws)


def _no_token(highest: float) -> EngineError:
    if highest == -math.inf:
        return EngineError("no token is left to choose: every logit is -inf")
    return EngineError(
        f"the model's logits are not finite numbers (the highest is {highest}); its weights or the "
        "numeric type that it is served in may be at fault"
    )
