"""How long a model's steps take on a device, from measured rows."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path

from aegaeon_scheduler.core.estimation.profile_row import PASS_TOKENS
from aegaeon_scheduler.profile_file import read_profile
from aegaeon_scheduler.simulator.errors import InputError

#: Points of a piecewise linear function, by ascending x.
_Curve = tuple[list[int], list[float]]


@dataclass(slots=True, eq=False)
class LatencyProfile:
    """Step times of one model on one device, in ns, interpolated between measured points."""

    #: Time of a prefill by its tokens, and of a decode step by its batch at short contexts.
    prefill: _Curve
    decode: _Curve
    #: Added to a decode step per token of context, beyond the measured one.
    context_token_ns: float
    _cache: dict[int, float] = field(default_factory=dict)

    def prefill_ns(self, tokens: int) -> float:
        """Time of one pass over ``tokens`` prompt tokens."""
        return _interpolate(self.prefill, tokens)

    def decode_ns(self, batch: int, context_tokens: int) -> float:
        """Time of a decode step of ``batch`` sequences with so much context in all."""
        base = self._cache.get(batch)
        if base is None:
            base = self._cache[batch] = _interpolate(self.decode, batch)
        return base + context_tokens * self.context_token_ns

    def step_ns(self, batch: int, context_tokens: int, prefill_tokens: int) -> int:
        """Time of a step that decodes ``batch`` sequences and prefills a chunk beside them.

        Weights are read once for both, so the pass takes as long as its slower half alone, with
        decoded tokens counted among those computed.
        """
        decode = self.decode_ns(batch, context_tokens) if batch else 0.0
        if prefill_tokens:
            return round(max(decode, self.prefill_ns(prefill_tokens + batch)))
        return round(decode)


def read_profiles(path: Path, device: str) -> dict[str, tuple[_Curve, _Curve]]:
    """Prefill and decode curves of every model measured on a device.

    Raises `InputError` naming file and line for malformed rows, or when the device is not there.
    """
    prefill: dict[str, dict[int, float]] = {}
    decode: dict[str, dict[int, tuple[int, float]]] = {}
    devices = set()
    for row in read_profile(path):
        devices.add(row.device)
        if row.device != device or row.tokens > PASS_TOKENS:
            continue
        tokens, batch = row.input_tokens, row.batch_size
        if batch == 1:
            prefill.setdefault(row.model, {})[tokens] = row.prefill_ns
        # Shortest contexts reach the largest batches; the rest of a context is priced separately.
        steps = decode.setdefault(row.model, {})
        if batch not in steps or tokens < steps[batch][0]:
            steps[batch] = (tokens, row.decode_ns)
    if device not in devices:
        known = ", ".join(sorted(devices)) or "none"
        raise InputError(f"{path}: no rows of device {device!r}; devices there: {known}")
    models = prefill.keys() & decode.keys()
    return {
        model: (
            _rising(prefill[model]),
            _rising({batch: step_ns for batch, (_, step_ns) in decode[model].items()}),
        )
        for model in sorted(models)
    }


def _rising(points: dict[int, float]) -> _Curve:
    """Points by x; a value below an earlier one is noise of the measurement, and is raised."""
    xs = sorted(points)
    ys: list[float] = []
    for x in xs:
        ys.append(max(points[x], ys[-1]) if ys else points[x])
    return xs, ys


def _interpolate(curve: _Curve, x: int) -> float:
    """Linear between points, level before the first, in proportion after the last."""
    xs, ys = curve
    if x <= xs[0]:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1] * x / xs[-1]
    right = bisect_left(xs, x)
    left = right - 1
    share = (x - xs[left]) / (xs[right] - xs[left])
    return ys[left] + share * (ys[right] - ys[left])
