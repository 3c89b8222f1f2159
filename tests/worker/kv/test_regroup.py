"""KV of engines of one number of ranks, for engines of another: the true heads, in their order."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from aegaeon_worker.kv.arrival import Arrival, Span
from aegaeon_worker.kv.place import BlockRun, KvPlace
from aegaeon_worker.kv.regroup import Regroup
from aegaeon_worker.kv.shape import KvShape

HEADS = 12


def host_block(shape: KvShape, full: torch.Tensor) -> bytes:
    """A block as the ranks of a shape leave it; ``full`` is [layers, 2, tokens, HEADS, dim]."""
    pieces = full.chunk(shape.pieces, dim=3)
    return b"".join(piece.contiguous().view(torch.uint8).numpy().tobytes() for piece in pieces)


def cases() -> Iterator[tuple[int, int, torch.dtype]]:
    numbers = (1, 2, 3, 4, 6, 12)
    for number, (before, after) in enumerate(itertools.product(numbers, numbers)):
        yield before, after, (torch.float32, torch.bfloat16)[number % 2]


@pytest.mark.parametrize(("before", "after", "dtype"), list(cases()))
def test_every_head_is_where_the_other_ranks_expect_it(
    before: int, after: int, dtype: torch.dtype
) -> None:
    shape = KvShape(num_layers=3, num_kv_heads=HEADS, head_dim=4, dtype=dtype)
    source, target = shape.in_pieces(before), shape.in_pieces(after)
    assert source is not None
    assert target is not None
    assert source.host_nbytes == target.host_nbytes == shape.block_nbytes
    full = torch.arange(shape.block_nbytes // dtype.itemsize, dtype=torch.int32).to(dtype)
    full = full.view(shape.block_shape)
    regroup = Regroup(shape.host_nbytes, source.rows, before, after)
    assert regroup.apply(host_block(source, full)) == host_block(target, full)


def test_heads_that_do_not_divide_are_no_shape_and_the_content_is_another() -> None:
    shape = KvShape(num_layers=3, num_kv_heads=3, head_dim=4, dtype=torch.float32, pieces=2)
    assert shape.in_pieces(4) is None
    assert shape.in_pieces(0) is None
    other = shape.in_pieces(3)
    assert other is not None
    assert other.num_kv_heads == 2
    assert other.content("w") != shape.content("w")
    assert other.in_pieces(2) == shape


def test_blocks_are_put_in_order_as_they_come_complete_wherever_they_are_cut() -> None:
    shape = KvShape(num_layers=1, num_kv_heads=4, head_dim=2, dtype=torch.float32)
    source = replace(shape, num_kv_heads=2, pieces=2)
    fulls = torch.randn(5, *shape.block_shape).unbind()
    sent = b"".join(host_block(source, full) for full in fulls)
    wanted = b"".join(host_block(shape, full) for full in fulls)
    size = shape.block_nbytes
    memory = bytearray(len(sent))
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    place = KvPlace(5 * 16, size, (BlockRun(0, 1, 0, 5),), "elsewhere", 2)
    arrival = Arrival(1, place, 0, Regroup(size, source.rows, 2, 1))
    arrival.open([Span(start, 2 * size), Span(start + 2 * size, 3 * size)])
    for cut in range(0, len(sent), 1000):
        arrival.write(sent[cut : cut + 1000])
        complete = arrival.received // size * size
        assert memory[:complete] == wanted[:complete]
    assert arrival.complete
