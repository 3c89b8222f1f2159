"""Kernels that work row by row: norms, activation, rotation, and the choice of tokens."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from aegaeon_worker.kernels.activation import silu_mul
from aegaeon_worker.kernels.decode_rows import choose_best, decode_inputs
from aegaeon_worker.kernels.norm import add_norm
from aegaeon_worker.kernels.rotary import rotary_tables, rotate_and_store
from tests.worker.kernels.paged import DTYPES, LAYERS, PagedContexts, assert_near, tolerance

EPS = 1e-5


def poisoned(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", [0, 1, 3])
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 100), (5, 1024)])
def test_add_norm(
    rows: int, width: int, parts: int, dtype: torch.dtype, device: torch.device
) -> None:
    residual = torch.randn(rows, width, device=device).to(dtype)
    weight = torch.randn(width, device=device).to(dtype)
    delta, added = None, residual.double()
    if parts == 1:
        # Rows of a wider tensor: their stride is not their width.
        delta = torch.randn(rows, width + 8, device=device).to(dtype)[:, :width]
        added = added + delta.double()
    elif parts:
        delta = torch.randn(parts, rows, width, device=device)
        added = added + delta.double().sum(0)
    out = add_norm(delta, residual, weight, EPS)
    expected = F.rms_norm(added, (width,), weight.double(), EPS)
    assert_near(residual, added, tolerance(dtype))
    assert_near(out, expected, tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 100), (2, 1500)])
def test_silu_mul(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
    gate_up = torch.randn(rows, 2 * width + 8, device=device).to(dtype)[:, : 2 * width]
    gate, up = gate_up.double().chunk(2, -1)
    assert_near(silu_mul(gate_up), F.silu(gate) * up, tolerance(dtype))


def turn(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate ``x`` [T, H, D] by ``angles`` [T, D / 2], as complex numbers."""
    first, second = x.double().chunk(2, -1)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat([turned.real, turned.imag], -1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("query_heads", "kv_heads", "dim"), [(4, 1, 16), (6, 2, 64), (2, 2, 32)])
def test_rotation_and_store(
    query_heads: int,
    kv_heads: int,
    dim: int,
    parts: int,
    normed: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    contexts = PagedContexts.draw([40, 0, 17], kv_heads, dim, dtype, device)
    before = contexts.kv.clone()
    positions = torch.tensor([39, -1, 0, 16], device=device)
    sequences = torch.tensor([0, 1, 2, 2], device=device)
    frequencies = 10000.0 ** -(torch.arange(dim // 2, device=device) * 2.0 / dim)
    scaling = 1.25
    tables = rotary_tables(
        positions, sequences, contexts.block_tables, frequencies, scaling, contexts.kv
    )
    width = (query_heads + 2 * kv_heads) * dim
    qkv = torch.randn(parts, 4, width, device=device)
    whole = qkv.double().sum(0)
    if parts == 1:
        qkv = qkv[0].to(dtype)
        whole = qkv.double()
    norms = tuple(torch.randn(2, dim, device=device).to(dtype)) if normed else None
    query, key, value = rotate_and_store(
        qkv, tables, norms, EPS, contexts.kv, LAYERS - 1, dense=parts == 1
    )

    heads = whole.view(4, -1, dim)
    q, k, v = heads.split([query_heads, kv_heads, kv_heads], 1)
    if norms:
        q = F.rms_norm(q, (dim,), norms[0].double(), EPS)
        k = F.rms_norm(k, (dim,), norms[1].double(), EPS)
    angles = positions[:, None].double() * frequencies.double()
    q, k = turn(q, angles) * scaling, turn(k, angles) * scaling
    used = [0, 2, 3]
    assert_near(query[used], q[used], tolerance(dtype))
    if parts == 1:
        assert_near(key[used], k[used], tolerance(dtype))
        assert_near(value, v, tolerance(dtype))
    for row in used:
        sequence, position = int(sequences[row]), int(positions[row])
        block = int(contexts.block_tables[sequence, position // 16])
        stored = contexts.kv[block, LAYERS - 1, :, position % 16]
        assert_near(stored[0], k[row], tolerance(dtype))
        assert_near(stored[1], v[row], tolerance(dtype))
        before[block, LAYERS - 1, :, position % 16] = stored
    torch.testing.assert_close(contexts.kv, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("vocab", [5, 4096, 9000])
def test_the_best_tokens_are_found_with_their_logits(vocab: int, device: torch.device) -> None:
    rows = 4
    tokens = torch.full((rows + 2,), -9, device=device)
    found = torch.full((rows, 2), -9.0, dtype=torch.float64, device=device)
    logits = torch.randn(rows, vocab, device=device)
    # The highest value three times: the lowest id wins, within a chunk and across chunks.
    for token in (vocab - 1, vocab // 2, vocab // 2 - 1):
        logits[0, token] = 9.0
    logits[3, vocab // 2] = float("nan")
    choose_best(logits, tokens, found)
    expected = logits[:3].argmax(-1)
    assert tokens[:3].tolist() == expected.tolist()
    assert tokens[0] == vocab // 2 - 1
    assert tokens[rows:].tolist() == [-9, -9]
    assert found[:, 0].tolist() == tokens[:rows].tolist()
    assert found[:3, 1].tolist() == logits.amax(-1)[:3].tolist()
    assert found[3].tolist() == [vocab // 2, float("inf")]


def test_staged_rows_take_their_tokens_from_the_host_or_from_the_step_before(
    device: torch.device,
) -> None:
    before = torch.tensor([70, 71, 72, 73], device=device)
    staged = torch.tensor(
        [[5, 0, 6, 0, 0], [-1, 3, -1, 0, -1], [0, 9, 31, 1, -1], [8, 7, 6, 5, -1]], device=device
    )
    tables = torch.zeros(5, 2, dtype=torch.int64, device=device)
    inputs = decode_inputs(staged, before, tables)
    assert inputs.token_ids.tolist() == [5, 73, 6, 70, 0]
    assert inputs.positions.tolist() == [0, 9, 31, 1, -1]
    assert inputs.context_lens.tolist() == [1, 10, 32, 2, 0]
    assert tables.tolist() == [[8, 0], [7, 0], [0, 6], [5, 0], [0, 0]]
