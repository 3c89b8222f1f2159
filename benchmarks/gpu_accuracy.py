"""Whether the native decoder is as exact on a GPU as plain bfloat16 ``transformers`` is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from transformers import PreTrainedModel

from benchmarks.gpu_models import DEVICE, RandomModel, qwen3_config, random_tokens
from benchmarks.gpu_steps import DecodeRun, decode_steps

PROMPTS, PROMPT_TOKENS, NEW_TOKENS, LAYERS = 4, 1100, 64, 4
_MAX_TOKENS = 1280
#: The native decoder's error may be this multiple of what plain transformers shows.
BOUND = 1.1


@dataclass(frozen=True)
class Accuracy:
    """Errors of log-probabilities over all tokens, against float32 ``transformers``."""

    native_prefill: float
    """Root mean square over tokens and vocabulary; whole prompts in one pass."""
    native_chunks: float
    """The same in two passes."""
    native_decode: float
    transformers: float
    agreement: float
    """Share of greedy tokens that equal those of float32, each after float32's own tokens."""
    transformers_agreement: float
    graph_agreement: float
    """Share of tokens that graphs and single passes choose alike."""

    def check(self) -> None:
        """Raise if the native decoder is less exact than plain bfloat16 is."""
        worst = max(self.native_prefill, self.native_chunks, self.native_decode)
        if not worst <= BOUND * self.transformers:
            raise AssertionError(f"log-probabilities are off by {worst}, {self}")
        if not self.graph_agreement >= 0.95:
            raise AssertionError(f"graphs and single passes differ: {self}")


@torch.inference_mode()
def measure_accuracy() -> Accuracy:
    """Run 8B-shaped layers both ways over random tokens."""
    model = RandomModel(qwen3_config("8B", LAYERS), kv_tokens=4 * PROMPTS * _MAX_TOKENS)
    length = PROMPT_TOKENS + NEW_TOKENS
    tokens = random_tokens(PROMPTS, length)
    wide = model.transformers_twin(torch.float32)
    reference = _log_probs(wide, tokens)
    del wide
    narrow = model.transformers_twin(torch.bfloat16)
    plain = _log_probs(narrow, tokens)
    del narrow
    tables = model.tables(4 * PROMPTS, _MAX_TOKENS)
    prefill = _error(_prefill(model, tokens, tables[:PROMPTS], (0, length)), reference)
    bounds = (0, 130, length)
    chunks = _error(_prefill(model, tokens, tables[PROMPTS : 2 * PROMPTS], bounds), reference)
    decode = _decode(model, tokens, tables[2 * PROMPTS : 3 * PROMPTS])
    late = reference[:, PROMPT_TOKENS:]
    return Accuracy(
        native_prefill=prefill,
        native_chunks=chunks,
        native_decode=_error(decode, late),
        transformers=_error(plain, reference),
        agreement=_agreement(decode, late),
        transformers_agreement=_agreement(plain[:, PROMPT_TOKENS:], late),
        graph_agreement=_graph_agreement(model, tokens, tables[3 * PROMPTS :]),
    )


def _log_probs(module: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    rows = [module(row[None].to(DEVICE)).logits[0].float() for row in tokens]
    return torch.stack(rows).log_softmax(-1)


def _prefill(
    model: RandomModel, tokens: torch.Tensor, tables: list[list[int]], bounds: Sequence[int]
) -> torch.Tensor:
    """Every row of the prompts, in passes that end at ``bounds``."""
    out = []
    for start, stop in pairwise(bounds):
        step = model.chunk(tokens[:, start:stop], tables, start=start)
        rows = torch.arange(step.token_ids.shape[0], device=DEVICE)
        logits = model.native.columns(step.token_ids, model.native.backend.attention(step), rows)
        out.append(logits.view(tokens.shape[0], stop - start, -1))
    return torch.cat(out, 1).log_softmax(-1)


def _decode(model: RandomModel, tokens: torch.Tensor, tables: list[list[int]]) -> torch.Tensor:
    """The last rows, token by token."""
    model.native.forward(model.chunk(tokens[:, :PROMPT_TOKENS], tables))
    rows = [
        model.native.forward(model.chunk(tokens[:, at : at + 1], tables, start=at))
        for at in range(PROMPT_TOKENS, tokens.shape[1])
    ]
    return torch.stack(rows, 1).log_softmax(-1)


def _graph_agreement(model: RandomModel, tokens: torch.Tensor, tables: list[list[int]]) -> float:
    """Free greedy decoding by graphs, checked by feeding its tokens to single passes."""
    prompts = tokens[:, :PROMPT_TOKENS]
    newest = model.native.forward(model.chunk(prompts, tables)).argmax(-1)
    # Three of four: the batch is padded.
    count = PROMPTS - 1
    steps = decode_steps(model, max_batch=8, max_tokens=_MAX_TOKENS)
    run = DecodeRun(steps, newest[:count].tolist(), PROMPT_TOKENS, tables[:count])
    chosen = [newest[:count].tolist(), *run.run(NEW_TOKENS)]
    path = torch.tensor(chosen).t()
    alike = 0
    for at in range(NEW_TOKENS):
        step = model.chunk(path[:, at : at + 1], tables[:count], start=PROMPT_TOKENS + at)
        expected = model.native.forward(step).argmax(-1).cpu()
        alike += int((expected == path[:, at + 1]).sum())
    return alike / (count * NEW_TOKENS)


def _error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).square().mean().sqrt())


def _agreement(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.argmax(-1) == expected.argmax(-1)).float().mean())
