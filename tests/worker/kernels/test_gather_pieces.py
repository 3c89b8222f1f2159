"""Copies of many pieces by one kernel."""

from __future__ import annotations

import pytest
import torch

from aegaeon_worker.kernels.gather_pieces import gather_pieces

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TILE_NBYTES = 4096 * 4


@pytest.mark.parametrize("programs", [1, 3, 64])
def test_every_piece_arrives_whole_and_nothing_beside_it_changes(programs: int) -> None:
    sizes = [16, TILE_NBYTES, TILE_NBYTES - 16, 3 * TILE_NBYTES + 32, (512 << 10) + 48]
    room = sum(sizes) + 16 * len(sizes)
    source = torch.randint(1, 255, (room,), dtype=torch.uint8, device=DEVICE)
    target = torch.zeros_like(source)
    expected = torch.zeros_like(source)
    rows, start = [], 0
    for nbytes in sizes:
        at = room - start - nbytes  # from behind, with 16 bytes between neighbours
        rows.append((source.data_ptr() + start, target.data_ptr() + at, nbytes))
        expected[at : at + nbytes] = source[start : start + nbytes]
        start += nbytes + 16
    gather_pieces(torch.tensor(rows), DEVICE, programs=programs)
    assert torch.equal(target, expected)


def test_an_empty_piece_compiles_the_kernel_and_copies_nothing() -> None:
    gather_pieces(torch.zeros((1, 3), dtype=torch.int64), DEVICE)
