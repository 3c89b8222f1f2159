"""Service level objectives: when tokens are due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aegaeon_scheduler.simulator.catalog import ModelShape
from aegaeon_scheduler.simulator.errors import InputError


@dataclass(frozen=True, slots=True)
class Objective:
    """Deadlines: token k, from 0, at arrival + TTFT + k * TPOT; both in ns."""

    ttft_ns: int = 10_000_000_000
    tpot_ns: int = 100_000_000

    @classmethod
    def of_seconds(cls, ttft_s: float, tpot_s: float) -> Objective:
        """Raises `InputError` unless both are positive and finite."""
        for name, value in (("TTFT", ttft_s), ("TPOT", tpot_s)):
            if not 0 < value < 1e6:
                raise InputError(f"the {name} objective is {value} s; it must be positive")
        return cls(round(ttft_s * 1e9), round(tpot_s * 1e9))

    def scaled(self, factor: float) -> Objective:
        """Both limits times ``factor``."""
        return Objective(round(self.ttft_ns * factor), round(self.tpot_ns * factor))


#: The published testbed's: 10 s and 100 ms.
DEFAULT_OBJECTIVE = Objective()


@dataclass(frozen=True, slots=True)
class Objectives:
    """A common objective, and those of models that have their own."""

    common: Objective = DEFAULT_OBJECTIVE
    own: Mapping[str, Objective] = field(default_factory=dict)

    def of(self, model: str) -> Objective:
        """The objective of a model's requests."""
        return self.own.get(model, self.common)

    def check(self, shapes: Mapping[str, ModelShape], device: str) -> None:
        """Raise `InputError` for an objective that no policy could meet."""
        for model, shape in shapes.items():
            objective = self.of(model)
            for name, limit_ns, least_ns, what in (
                ("TPOT", objective.tpot_ns, shape.profile.decode_ns(1, 0), "a decode step"),
                ("TTFT", objective.ttft_ns, shape.profile.prefill_ns(1), "a prefill"),
            ):
                if limit_ns < least_ns:
                    raise InputError(
                        f"the {name} objective of model {model!r} is {limit_ns / 1e6:g} ms, but "
                        f"{what} alone takes at least {least_ns / 1e6:.3g} ms on {device}; no "
                        "policy can meet it"
                    )
