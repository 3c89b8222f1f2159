"""KV of engines of several workers, for engines of another number of them."""

from __future__ import annotations

from math import gcd


class Regroup:
    """Puts the bytes of a host block into the order that other ranks keep them in.

    A block holds the pieces of all ranks one after another, each ``[rows, heads of the piece]``,
    with ``rows`` for every layer, K and V, and token. So one of two pieces and one of four have the
    same bytes in another order.
    """

    def __init__(self, nbytes: int, rows: int, before: int, after: int) -> None:
        """``nbytes`` of a block, a multiple of ``rows * before`` and of ``rows * after``."""
        self._slices = _order(nbytes // rows, rows, before, after)

    def apply(self, block: bytes) -> bytes:
        """The block in its new order."""
        view = memoryview(block)
        return b"".join([view[part] for part in self._slices])


def _order(width: int, rows: int, before: int, after: int) -> list[slice]:
    """Where the bytes of the new order are in the old one; a row of all heads has ``width``."""
    old, new = width // before, width // after
    step = gcd(old, new)
    parts = []
    for piece in range(after):
        for row in range(rows):
            for at in range(piece * new, (piece + 1) * new, step):
                start = (at // old * rows + row) * old + at % old
                parts.append(slice(start, start + step))
    return parts
