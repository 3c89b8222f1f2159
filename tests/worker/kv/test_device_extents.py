"""Where blocks lie in chunks, and the copies that bring them into others."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from aegaeon_worker.device.interface import VirtualRange
from aegaeon_worker.kv.device_extents import extents_of, pieces_for

_POSITIONS, _CHUNK = 12, 24


class _Held:
    """A range whose positions are backed by these chunks."""

    def __init__(self, chunks: list[int]) -> None:
        self.chunk = chunks.__getitem__


def _bytes(parts: list[tuple[int, int]]) -> list[int]:
    return [at for start, nbytes in parts for at in range(start, start + nbytes)]


@given(st.permutations(range(_POSITIONS)), st.sampled_from([5, 8, 24, 31]), st.data())
def test_every_byte_goes_to_its_place_in_the_fewest_pieces(
    chunks: list[int], nbytes: int, data: st.DataObject
) -> None:
    numbers = st.integers(0, _POSITIONS * _CHUNK // nbytes - 1)
    source = data.draw(st.lists(numbers, min_size=1, unique=True))
    size = len(source)
    target = data.draw(st.lists(numbers, min_size=size, max_size=size, unique=True))
    held = cast("VirtualRange", _Held(chunks))

    extents = extents_of(source, nbytes, held, _CHUNK)
    parts = list(zip(*extents, strict=True))
    lie = _bytes([(block * nbytes, nbytes) for block in source])
    assert _bytes(parts) == [chunks[at // _CHUNK] * _CHUNK + at % _CHUNK for at in lie]
    assert all(sum(a) != b[0] for a, b in pairwise(parts))

    pieces = pieces_for(extents, target, nbytes).tolist()
    assert _bytes([(start, count) for start, _, count in pieces]) == _bytes(parts)
    assert _bytes([(offset, count) for _, offset, count in pieces]) == _bytes(
        [(block * nbytes, nbytes) for block in target]
    )
    follows = (a[0] + a[2] == b[0] and a[1] + a[2] == b[1] for a, b in pairwise(pieces))
    assert not any(follows)
