"""Step and switch times of one engine, learned from what its worker measures."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Weight of the newest measurement: half of the memory is gone after three.
_GAIN = 0.2
_DEFAULT_STEP_NS = 20_000_000.0
_DEFAULT_SWITCH_NS = 50_000_000.0


@dataclass(slots=True)
class Estimator:
    """Moving averages per model, in ns; sane defaults before the first measurement."""

    _steps: dict[str, float] = field(default_factory=dict)
    _switches: dict[str, float] = field(default_factory=dict)

    def observe_step(self, model: str, step_ns: int) -> None:
        """A decode step of ``model`` took ``step_ns``."""
        old = self._steps.get(model, step_ns)
        self._steps[model] = old + _GAIN * (step_ns - old)

    def observe_switch(self, model: str, switch_ns: int) -> None:
        """Bringing ``model``'s weights in took ``switch_ns``."""
        old = self._switches.get(model, switch_ns)
        self._switches[model] = old + _GAIN * (switch_ns - old)

    def step_ns(self, model: str) -> float:
        """Expected time of a decode step; at least 1."""
        return max(self._steps.get(model, _DEFAULT_STEP_NS), 1.0)

    def switch_ns(self, model: str) -> float:
        """Expected time of a switch to ``model``."""
        return self._switches.get(model, _DEFAULT_SWITCH_NS)
