"""One estimator per kind of device."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items

from aegaeon_scheduler.core.estimation.estimator import Estimator
from aegaeon_scheduler.core.estimation.prior import model_size
from aegaeon_scheduler.core.estimation.profile_row import ProfileRow
from aegaeon_scheduler.core.values import DeviceFacts, ModelFacts


class Estimates:
    """Engines of the same kind of device learn together; what they learned outlives them."""

    def __init__(
        self, profiles: Items[ProfileRow] = (), names: Mapping[str, str] | None = None
    ) -> None:
        """See `Estimator`."""
        self._profiles = profiles
        self._names = names
        self._estimators: dict[tuple[str, str], Estimator] = {}
        self._facts: dict[str, ModelFacts] = {}

    def of(self, device: DeviceFacts) -> Estimator:
        """The estimator of a device's kind."""
        kind = device.kind, device.name
        found = self._estimators.get(kind)
        if found is None:
            found = self._estimators[kind] = Estimator(device, self._profiles, self._names)
            for model, facts in self._facts.items():
                found.size_up(model, model_size(facts))
        return found

    def size_up(self, model: str, facts: ModelFacts) -> None:
        """A model's files have been read."""
        if self._facts.get(model) == facts:
            return
        self._facts[model] = facts
        for estimator in self._estimators.values():
            estimator.size_up(model, model_size(facts))
