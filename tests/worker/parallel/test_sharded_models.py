"""A model on several ranks computes what it computes on one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aegaeon.errors import ModelUnsupportedError
from aegaeon_worker.models.loader import TransformersLoader
from aegaeon_worker.parallel.communicator import Communicator
from aegaeon_worker.parallel.ranks import Ranks
from tests.worker.models.paged_runner import PagedRunner
from tests.worker.models.tiny import make_checkpoint
from tests.worker.parallel.threads import on_ranks

NEW_TOKENS = 6
PROMPTS = {0: list(range(5, 25)), 1: list(range(100, 150)), 2: [7]}


def generate(path: Path, communicator: Communicator) -> dict[int, list[int]]:
    """Tokens of rank 0, which the other ranks are told."""
    runner = PagedRunner(path, collectives=communicator)
    told: dict[int, list[int]] = {sequence: [] for sequence in PROMPTS}
    work = {sequence: list(prompt) for sequence, prompt in PROMPTS.items()}
    for _ in range(NEW_TOKENS):
        logits = runner.step(work)
        tokens = torch.zeros(len(work))
        if communicator.ranks.rank == 0:
            tokens.copy_(logits.argmax(-1))
        work = {s: [int(t)] for s, t in zip(work, communicator.sum(tokens), strict=True)}
        for sequence, new in work.items():
            told[sequence] += new
    return told


@pytest.mark.parametrize(
    ("family", "size", "options"),
    [
        ("llama", 2, {}),
        ("llama", 4, {"vocab_size": 510}),  # 2 KV heads, each on two ranks; a vocabulary with rest
        ("llama", 2, {"attention_bias": True, "mlp_bias": False}),
        ("qwen2", 2, {}),
        ("qwen3", 4, {}),
        ("phi3", 2, {}),
        ("gemma2", 2, {}),
        ("gemma3_text", 4, {}),
        ("qwen3_moe", 2, {}),
        ("olmo2", 2, {}),
        ("gpt_oss", 2, {}),
    ],
)
def test_ranks_together_generate_what_one_worker_does(
    tmp_path: Path, family: str, size: int, options: dict[str, int]
) -> None:
    path = make_checkpoint(family, tmp_path / "model", **options)
    alone = PagedRunner(path).generate(PROMPTS, NEW_TOKENS)
    on_all = on_ranks(tmp_path, size, lambda communicator: generate(path, communicator))
    assert on_all == [alone] * size


@pytest.mark.parametrize(
    ("family", "size", "numbers"),
    [
        ("llama", 3, "4 query heads and 2 KV heads cannot be shared among 3 ranks.* 1, 2, 4"),
        ("gemma2", 8, "4 query heads and 2 KV heads cannot be shared among 8 ranks"),
        ("gpt2", 2, "GPT2LMHeadModel has no tensor-parallel plan"),
    ],
)
def test_what_does_not_divide_is_refused_with_the_numbers(
    tmp_path: Path, family: str, size: int, numbers: str
) -> None:
    path = make_checkpoint(family, tmp_path)
    loader = TransformersLoader(
        torch.device("cpu"), Communicator(Ranks(0, size), torch.device("cpu"), 1.0)
    )
    with pytest.raises(ModelUnsupportedError, match=numbers):
        loader.open(path, dtype=torch.float32, max_model_len=None, trust_remote_code=False)
    other = make_checkpoint("llama", tmp_path / "odd", intermediate_size=90)
    loader = TransformersLoader(
        torch.device("cpu"), Communicator(Ranks(0, 4), torch.device("cpu"), 1.0)
    )
    with pytest.raises(ModelUnsupportedError, match=r"intermediate size of 90 .* 4 ranks"):
        loader.open(other, dtype=torch.float32, max_model_len=None, trust_remote_code=False)
