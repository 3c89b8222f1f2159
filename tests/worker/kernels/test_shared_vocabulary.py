"""A vocabulary over several ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from aegaeon_worker.kernels.shared_vocabulary import embed_share, settle_best, spread_best


def test_shares_of_an_embedding_add_up(device: torch.device) -> None:
    table = torch.randn(90, 48, device=device)
    ids = torch.tensor([0, 29, 30, 59, 60, 89, 30], device=device)
    parts = [embed_share(ids, table[30 * r : 30 * r + 30], 30 * r) for r in range(3)]
    assert torch.equal(sum(parts), F.embedding(ids, table))


def test_the_best_of_all_ranks_is_the_lowest_id_among_equals(device: torch.device) -> None:
    infinite = float("inf")
    # Per rank: column and logit of three sequences.
    found = [
        torch.tensor([[4, 1.5], [7, -2.0], [1, -infinite]], dtype=torch.float64, device=device),
        torch.tensor([[0, 1.5], [3, -1.0], [2, infinite]], dtype=torch.float64, device=device),
    ]
    every = sum(spread_best(one, 10 * rank, rank, 2) for rank, one in enumerate(found))
    assert isinstance(every, torch.Tensor)
    tokens = torch.zeros(5, dtype=torch.int64, device=device)
    chosen = torch.zeros(3, 2, dtype=torch.float64, device=device)
    settle_best(every, tokens, chosen)
    assert tokens.tolist() == [4, 13, 12, 0, 0]
    assert chosen.tolist() == [[4, 1.5], [13, -1.0], [12, infinite]]
