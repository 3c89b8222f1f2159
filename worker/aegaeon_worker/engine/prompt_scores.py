"""Log-probabilities of prompts' tokens: which a step computes, and how they come to the host."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch

from aegaeon.errors import EngineError
from aegaeon_worker.device.host_link import Download, upload
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.engine.step_plan import Chunk
from aegaeon_worker.sampling.log_probabilities import Measured
from aegaeon_worker.sampling.prompt_log_probabilities import ToldTokens, measure_rows, told_tokens


class PromptPiece(NamedTuple):
    """Neighbouring tokens of a prompt, by their positions in it."""

    sequence: Sequence
    tokens: range


class PendingPromptScores:
    """Of one step: on the device, and on their way to the host."""

    def __init__(self, pieces: Seq[PromptPiece], measured: Measured) -> None:
        """``measured`` has a row per token of ``pieces``."""
        self.pieces = pieces
        self._download = Download(measured)

    def wait(self) -> list[ToldTokens | EngineError]:
        """Block until they are known, one per piece, or why a piece has none."""
        sizes = [(len(tokens), _asked(sequence)) for sequence, tokens in self.pieces]
        told = told_tokens(Measured(*self._download.wait()), sizes)
        return [_checked(one) for one in told]


def scored_pieces(chunks: Seq[Chunk]) -> list[PromptPiece]:
    """What the logits of a step tell of prompts, in the order of their rows in `build_input`."""
    return [
        PromptPiece(chunk.sequence, tokens)
        for chunk in chunks
        if chunk.sequence.is_scored and (tokens := chunk.scored)
    ]


@torch.inference_mode()
def score_prompts(logits: torch.Tensor, pieces: Seq[PromptPiece]) -> PendingPromptScores:
    """Log-softmax of float32 ``logits`` [R, vocab], a row per token of ``pieces``, without waiting
    for the device."""
    own = [
        token
        for sequence, tokens in pieces
        for token in sequence.tokens[tokens.start : tokens.stop]
    ]
    count = max(_asked(sequence) for sequence, _ in pieces)
    return PendingPromptScores(pieces, measure_rows(logits, upload(own, logits.device), count))


def _asked(sequence: Sequence) -> int:
    return sequence.prompt_logprobs or 0


def _checked(told: ToldTokens) -> ToldTokens | EngineError:
    if any(map(math.isnan, told.logprobs)):
        return EngineError(
            "the model's logits at tokens of the prompt are not finite numbers; its weights or the "
            "numeric type that it is served in may be at fault"
        )
    return told
