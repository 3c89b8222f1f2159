"""Paged attention, decode and prefill, against float64 over dense keys."""

from __future__ import annotations

import random

import pytest
import torch

from aegaeon_worker.kernels.decode_attention import DecodeSequences, choose_splits, decode_attention
from aegaeon_worker.kernels.dense_attention import (
    DenseRun,
    dense_attention,
    dense_tokens,
    plan_dense,
)
from aegaeon_worker.kernels.prefill_attention import PrefillTiles, prefill_attention
from tests.worker.kernels.paged import DTYPES, LAYERS, PagedContexts, assert_near, tolerance

#: (window, query heads, KV heads, head size)
DECODE_CASES = [(None, 1, 1, 16), (1, 6, 2, 32), (20, 4, 1, 64), (500, 6, 2, 32), (None, 8, 2, 128)]
PREFILL_CASES = [
    (None, 1, 1, 16),
    (1, 2, 1, 16),
    (30, 3, 1, 32),
    (200, 2, 2, 16),
    (None, 2, 1, 128),
]
#: No tokens, one, a block, a tile, and past each of them.
LENGTHS = [0, 1, 16, 17, 64, 65, 150]


def randn(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.randn(*shape, device=device).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize(("window", "heads", "kv_heads", "dim"), DECODE_CASES)
def test_decode(
    window: int | None,
    heads: int,
    kv_heads: int,
    dim: int,
    splits: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    contexts = PagedContexts.draw(LENGTHS, kv_heads, dim, dtype, device)
    lens = torch.tensor(LENGTHS, dtype=torch.int32, device=device)
    query = randn(len(LENGTHS), heads, dim, dtype=dtype, device=device)
    out = torch.full_like(query, float("nan"))
    everything = DecodeSequences(lens, contexts.block_tables, None, None)
    decode_attention(
        query, everything, contexts.kv, LAYERS - 1, out,
        scale=0.3, window=window, splits=splits,
    )  # fmt: skip
    assert (out[0] == 0).all()
    for sequence in range(1, len(LENGTHS)):
        expected = contexts.attend(sequence, query[sequence : sequence + 1], 0.3, window)
        assert_near(out[sequence : sequence + 1], expected, tolerance(dtype))


@pytest.mark.parametrize("splits", [1, 4])
def test_decode_of_some_rows_leaves_the_others_alone(splits: int, device: torch.device) -> None:
    contexts = PagedContexts.draw([33, 5, 70], 2, 16, torch.float32, device)
    lens = torch.tensor([33, 5, 70], dtype=torch.int32, device=device)
    query = randn(9, 4, 16, dtype=torch.float32, device=device)
    out = torch.full_like(query, float("nan"))
    rows = DecodeSequences(
        lens, contexts.block_tables,
        torch.tensor([2, 0], dtype=torch.int32, device=device),
        torch.tensor([8, 3], dtype=torch.int32, device=device),
    )  # fmt: skip
    decode_attention(
        query, rows, contexts.kv, LAYERS - 1, out, scale=0.25, window=None, splits=splits
    )
    for sequence, row in ((2, 8), (0, 3)):
        expected = contexts.attend(sequence, query[row : row + 1], 0.25, None)
        assert_near(out[row : row + 1], expected, 1e-5)
    assert out[[0, 1, 2, 4, 5, 6, 7]].isnan().all()


def test_splits_are_powers_of_two_of_two_tiles_or_more() -> None:
    for count in (1, 3, 8, 32, 256):
        for tokens in (1, 64, 65, 1000, 40000):
            splits = choose_splits(count, 8, tokens)
            assert splits.bit_count() == 1
            assert splits <= max(1, tokens // 128)
    assert choose_splits(256, 8, 40000) == 1
    assert choose_splits(1, 8, 40000) > 8


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("window", "heads", "kv_heads", "dim"), PREFILL_CASES)
def test_prefill(
    window: int | None,
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    # Fresh prompts, chunks after a context, and sequences that other kernels serve.
    query_lens, context_lens = [2, 1, 130, 33, 30, 1], [2, 40, 130, 170, 31, 1]
    contexts = PagedContexts.draw(context_lens, kv_heads, dim, dtype, device)
    query = randn(sum(query_lens), heads, dim, dtype=dtype, device=device)
    out = torch.full_like(query, float("nan"))
    chosen = [0, 2, 3, 4]
    tiles = PrefillTiles.plan(chosen, query_lens, context_lens, [0] * 6, device)
    prefill_attention(
        query, tiles, contexts.block_tables, contexts.kv, LAYERS - 1, out,
        scale=0.3, window=window,
    )  # fmt: skip
    starts = [sum(query_lens[:sequence]) for sequence in range(len(query_lens))]
    for sequence, (start, length) in enumerate(zip(starts, query_lens, strict=True)):
        got = out[start : start + length]
        if sequence not in chosen:
            assert got.isnan().all()
            continue
        expected = contexts.attend(sequence, query[start : start + length], 0.3, window)
        assert_near(got, expected, tolerance(dtype))


def test_prefill_in_random_chunks_equals_the_whole(device: torch.device) -> None:
    draw = random.Random(3)
    length = 200
    contexts = PagedContexts.draw([length], 2, 16, torch.float32, device)
    query = randn(length, 4, 16, dtype=torch.float32, device=device)
    expected = contexts.attend(0, query, 0.25, None)
    done = 0
    while done < length:
        size = min(draw.randrange(2, 100), length - done)
        out = torch.full((size, 4, 16), float("nan"), device=device)
        prefill_attention(
            query[done : done + size].contiguous(),
            PrefillTiles.plan([0], [size], [done + size], [0], device),
            contexts.block_tables, contexts.kv, LAYERS - 1, out, scale=0.25, window=None,
        )  # fmt: skip
        assert_near(out, expected[done : done + size], 1e-5)
        done += size


def test_dense_and_paged_attention_share_a_long_prompt(device: torch.device) -> None:
    lengths = [1100, 3, 1024, 1024]
    covered = dense_tokens(lengths, lengths, [None])
    assert covered == [1024, 0, 1024, 1024]
    runs = plan_dense(lengths, covered)
    assert runs == (DenseRun(0, 1, 1024), DenseRun(1103, 2, 1024))
    dtype = DTYPES[1]
    contexts = PagedContexts.draw(lengths, 1, 16, dtype, device)
    query = randn(sum(lengths), 2, 16, dtype=dtype, device=device)
    out = torch.full_like(query, float("nan"))
    key, value = torch.cat(contexts.keys), torch.cat(contexts.values)
    for run in runs:
        out[run.rows] = dense_attention(query, key, value, run, scale=0.25)
    tiles = PrefillTiles.plan([0, 1], lengths, lengths, covered, device)
    prefill_attention(
        query, tiles, contexts.block_tables, contexts.kv, LAYERS - 1, out, scale=0.25, window=None
    )
    start = 0
    for sequence, length in enumerate(lengths):
        rows = slice(start, start + length)
        expected = contexts.attend(sequence, query[rows], 0.25, None)
        assert_near(out[rows], expected, tolerance(dtype))
        start += length


def test_only_whole_prompts_without_a_window_are_dense() -> None:
    assert dense_tokens([2100, 4000], [2100, 4000], [None, 4096]) == [2048, 3840]
    assert dense_tokens([2100, 4000], [2100, 4000], [None, 3999]) == [2048, 0]
    assert dense_tokens([2100], [2101], [None]) == [0]
    assert dense_tokens([1023, 1, 2048], [1023, 5, 2048], [None]) == [0, 0, 2048]


def test_a_pass_of_few_tokens_is_not_dense() -> None:
    assert dense_tokens([2047], [2047], [None]) == [0]
    assert dense_tokens([1024, 1024], [1024, 1024], [None]) == [1024, 1024]
