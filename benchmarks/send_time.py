"""Tokens that tell when they were sent, to a process on the same machine.

A token is the monotonic clock in units of 10 microseconds, modulo 2**21: as long on the wire as
most ids of a large vocabulary, and unambiguous for 20 seconds.
"""

from __future__ import annotations

import time

_UNIT_NS = 10_000
_MODULUS = 1 << 21


def now() -> int:
    """The token of this moment."""
    return time.monotonic_ns() // _UNIT_NS % _MODULUS


def age(token: int, at: int) -> int:
    """How long before the token ``at`` this one was sent, in units of 10 microseconds."""
    return (at - token) % _MODULUS


def packed_tokens(field: int, count: int, vocabulary: int = _MODULUS) -> bytes:
    """A packed protobuf field with ``count`` times the token of this moment, 3 bytes each; below
    ``vocabulary``, which leaves its age untold."""
    token = now() % vocabulary
    one = bytes([token & 0x7F | 0x80, token >> 7 & 0x7F | 0x80, token >> 14])
    size = 3 * count
    head = (
        [field << 3 | 2, size] if size < 0x80 else [field << 3 | 2, size & 0x7F | 0x80, size >> 7]
    )
    return bytes(head) + one * count
