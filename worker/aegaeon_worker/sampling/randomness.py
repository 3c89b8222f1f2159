"""Random numbers that depend on seed and position alone, so that they need no state."""

from __future__ import annotations

import torch

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
#: Bits of a number below 1: with one more, its product with a sum could be rounded up to the sum.
_BITS = 52


def uniforms(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """One number in [0, 1) per seed and position, both int64 [N]; float64 [N].

    SplitMix64 (Steele, Lea and Flood, 2014) as a counter-based generator: the seed, mixed so that
    neighbours have nothing in common, is where a stream starts, and the position is how far along
    it the number is. The arithmetic is that of unsigned 64-bit integers, which wraps.
    """
    start = _mix(seeds + _signed(_GOLDEN))
    bits = _mix(start + (positions + 1) * _signed(_GOLDEN))
    return _shift(bits, 64 - _BITS).to(torch.float64) * 2.0**-_BITS


def _mix(value: torch.Tensor) -> torch.Tensor:
    value = (value ^ _shift(value, 30)) * _signed(_FIRST)
    value = (value ^ _shift(value, 27)) * _signed(_SECOND)
    return value ^ _shift(value, 31)


def _shift(value: torch.Tensor, count: int) -> torch.Tensor:
    """To the right, zeros coming in from the left."""
    return (value >> count) & ((1 << (64 - count)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64)
