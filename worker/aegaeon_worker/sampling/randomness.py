"""Random numbers that depend on seed, position and token alone, so that they need no state."""

from __future__ import annotations

import torch

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
#: Of a number, which half a unit in the last place keeps from being 0.
_BITS = 52


def streams(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """What each pair of seed and position, both int64 [N], begins its numbers with; int64 [N].

    SplitMix64 (Steele, Lea and Flood, 2014) as a counter-based generator: an output of the stream
    that begins with one number begins the next stream, so that neighbours have nothing in common.
    The arithmetic is that of unsigned 64-bit integers, which wraps.
    """
    zero = torch.zeros((), dtype=torch.int64, device=seeds.device)
    return _output(_output(seeds, zero), positions)


def uniforms(starts: torch.Tensor, indexes: torch.Tensor) -> torch.Tensor:
    """The numbers of streams at ``indexes``, both int64 and of one shape; float64 in (0, 1)."""
    bits = _shift(_output(starts, indexes), 64 - _BITS)
    return (bits.to(torch.float64) + 0.5) * 2.0**-_BITS


def _output(starts: torch.Tensor, indexes: torch.Tensor) -> torch.Tensor:
    return _mix(starts + (indexes + 1) * _signed(_GOLDEN))


def _mix(value: torch.Tensor) -> torch.Tensor:
    value = (value ^ _shift(value, 30)) * _signed(_FIRST)
    value = (value ^ _shift(value, 27)) * _signed(_SECOND)
    return value ^ _shift(value, 31)


def _shift(value: torch.Tensor, count: int) -> torch.Tensor:
    """To the right, zeros coming in from the left."""
    return (value >> count) & ((1 << (64 - count)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64)
