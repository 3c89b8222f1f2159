"""One token per row: the best one, or one drawn."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from aegaeon_worker.sampling.randomness import streams, uniforms

#: Tokens that are looked at together, which is far faster than to search whole vocabularies.
#: Weights are summed in float32 within chunks, and in float64 across them.
_CHUNK = 128


def best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The highest logit per row of ``logits`` [R, V]: its token int64 [R], the lowest id among
    equals, and its value [R]. One that is no number counts as the highest."""
    if logits.device.type != "cpu" and len(logits):
        # In two launches instead of eight. Triton is installed with PyTorch for CUDA only.
        from aegaeon_worker.kernels.decode_rows import choose_best

        tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        found = torch.empty(len(logits), 2, dtype=torch.float64, device=logits.device)
        choose_best(logits, tokens, found)
        return tokens, found[:, 1].to(logits.dtype)
    chunks = _chunks(logits, -torch.inf)
    value, chunk = chunks.amax(-1).max(-1)
    rows = torch.arange(len(logits), device=logits.device)
    return chunk * _CHUNK + chunks[rows, chunk].argmax(-1), value


def draw(weights: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Tokens int64 [R] with probabilities in proportion to ``weights`` [R, V], not negative.

    ``seeds`` and ``positions``, int64 [R], begin the random numbers of each row. First a chunk of
    the vocabulary is drawn, then a token in it, each by a race: of candidates whose times are
    exponentially distributed with their weights as rates, the first is a draw. One of weight 0
    never comes. A difference in the last place of a weight changes the winner only where two come
    in at the same time; inverting the cumulative distribution, every token's border would be such
    a place.
    """
    chunks = _chunks(weights)
    sums = chunks.sum(-1)
    if weights.device.type != "cpu":
        # In one launch instead of fifty. Triton is installed with PyTorch for CUDA only.
        from aegaeon_worker.kernels.draws import draw_tokens

        return draw_tokens(weights, sums, seeds, positions, _CHUNK)
    starts = streams(seeds, positions)
    ids = torch.arange(chunks.shape[1]).expand(len(weights), -1)
    # Numbers of chunks are those before 0, so that no token shares them.
    chunk = _first(sums, starts, -1 - ids)
    rows = torch.arange(len(weights))
    ids = chunk[:, None] * _CHUNK + torch.arange(_CHUNK)
    token = chunk * _CHUNK + _first(chunks[rows, chunk], starts, ids)
    return token.clamp(max=weights.shape[1] - 1)  # beyond only where weights are no numbers


def _first(rates: torch.Tensor, starts: torch.Tensor, indexes: torch.Tensor) -> torch.Tensor:
    """Winners of the races between the columns of ``rates`` [R, N]."""
    times = -uniforms(starts[:, None], indexes).log()
    return (rates / times).argmax(-1)


def total(weights: torch.Tensor) -> torch.Tensor:
    """Sums of the rows of ``weights`` [R, V], in float64 [R]."""
    return _chunks(weights).sum(-1).sum(-1, dtype=torch.float64)


def _chunks(values: torch.Tensor, padding: float = 0.0) -> torch.Tensor:
    rest = -values.shape[1] % _CHUNK
    padded = F.pad(values, (0, rest), value=padding) if rest else values
    return padded.view(len(values), padded.shape[1] // _CHUNK, _CHUNK)
