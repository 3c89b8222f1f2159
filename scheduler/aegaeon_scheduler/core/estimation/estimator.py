"""What the policies ask: how long steps, prefills, switches and moves of KV take."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from math import log

from aegaeon_scheduler.core.estimation.copy_times import CopyTimes
from aegaeon_scheduler.core.estimation.model_times import ModelTimes
from aegaeon_scheduler.core.estimation.prior import (
    UNKNOWN_SIZE,
    ModelSize,
    decode_prior,
    device_speed,
    prefill_prior,
)
from aegaeon_scheduler.core.estimation.profile_row import (
    ProfileRow,
    device_profiles,
    find_profile,
)
from aegaeon_scheduler.core.values import DeviceFacts

#: Prompt tokens of one pass, until a worker shows that it takes more.
_PASS_TOKENS = 512


class Estimator:
    """Times of all models on one kind of device, in ns; sane before the first measurement.

    A model that has not been measured is as much slower than its prior as the measured model that
    is nearest to it in size.
    """

    def __init__(
        self,
        device: DeviceFacts,
        profiles: Items[ProfileRow] = (),
        names: Mapping[str, str] | None = None,
    ) -> None:
        """``profiles`` seed the times of models; ``names`` are those of their rows in there, where
        they do not begin a model's own name.
        """
        self._names = names or {}
        self._profiles = device_profiles(profiles, device.name)
        self._speed = device_speed(device)
        self._sizes: dict[str, ModelSize] = {}
        self._times: dict[str, ModelTimes] = {}
        self._copies = CopyTimes(self._speed)
        #: Models with measured or seeded times.
        self._known: dict[str, None] = {}
        #: Unmeasured models, to be looked at again when more is known.
        self._guessed: set[str] = set()
        self._pass_tokens = _PASS_TOKENS

    def size_up(self, model: str, size: ModelSize) -> None:
        """The model's files have been read; times of other files under its name are forgotten."""
        before = self._sizes.get(model)
        if before == size:
            return
        self._sizes[model] = size
        if before is not None or model not in self._known:
            self._times.pop(model, None)
            self._known.pop(model, None)
            self._copies.forget(model)

    def step_ns(self, model: str, batch: float = 1, context_tokens: float = 0) -> float:
        """A decode step of so many sequences, with so many tokens in KV altogether; at least 1."""
        return max(self.times(model).decode_ns(batch, context_tokens), 1.0)

    def prefill_ns(self, model: str, tokens: int, context_tokens: int = 0) -> float:
        """Computing ``tokens`` of a prompt of which ``context_tokens`` are in KV already, in as
        many passes as the worker makes; at least 1.
        """
        times, most = self.times(model), self._pass_tokens
        whole, rest = divmod(tokens, most)
        # Passes follow each other, so the mean context of all of them is that of the middle.
        end = context_tokens + whole * most
        total = whole * times.prefill_ns(most, 0, (context_tokens + end) / 2) if whole else 0.0
        if rest:
            total += times.prefill_ns(rest, 0, end + rest / 2)
        return max(total + times.prompt_ns(), 1.0)

    def switch_ns(self, model: str) -> float:
        """Beginning a turn of a model whose weights are not on the device."""
        return self._copies.switch_ns(model, self._size(model).packed_bytes)

    def fetch_ns(self, model: str) -> float:
        """Bringing all weights of a model to the device, none of which are there."""
        return self._copies.fetch_ns(self._size(model).packed_bytes)

    def kv_swap_ns(self, nbytes: float) -> float:
        """Moving so much KV between host and device, in one direction."""
        return self._copies.swap_ns(nbytes)

    def observe_step(
        self,
        model: str,
        step_ns: int,
        batch: int,
        context_tokens: int,
        prefill_tokens: int = 0,
        prompts: int = 0,
    ) -> None:
        """A step took ``step_ns``: ``batch`` sequences got one more token, and beside them
        ``prefill_tokens`` were computed, which completed ``prompts``. Times of 0 teach nothing.
        """
        times = self._times.get(model)
        if times is None:
            times = self.times(model)
        if not times.observe(step_ns, batch, context_tokens, prefill_tokens, prompts):
            return
        if prefill_tokens > self._pass_tokens and not batch:
            self._pass_tokens = prefill_tokens
        count = times.observed
        if count & (count - 1) == 0:  # a power of two: often at first, and ever more rarely
            self._pass_on(model)

    def observe_turn(
        self,
        model: str,
        switched: bool,
        switch_ns: int,
        weight_bytes: int,
        kv_ns: int,
        kv_bytes: int,
    ) -> None:
        """Beginning a turn took ``switch_ns`` and moved so much; ``switched`` unless the model's
        weights were on the device already.
        """
        if switched:
            self._copies.observe_switch(model, switch_ns, weight_bytes, kv_bytes)
        self._copies.observe_swap(kv_ns, kv_bytes)

    def times(self, model: str) -> ModelTimes:
        """Step times of a model."""
        found = self._times.get(model)
        if found is None:
            found = self._times[model] = self._begin(model)
        return found

    def _begin(self, model: str) -> ModelTimes:
        size = self._size(model)
        priors = decode_prior(self._speed, size), prefill_prior(self._speed, size)
        profile = find_profile(self._profiles, self._names.get(model, model))
        if profile is not None:
            times = ModelTimes(*priors)
            profile.teach(times)
            self._known[model] = None
            return times
        nearest = self._nearest(size)
        if nearest is None:
            return ModelTimes(*priors)
        return ModelTimes(*priors, *self._times[nearest].factors())

    def _nearest(self, size: ModelSize) -> str | None:
        def distance(model: str) -> float:
            return abs(log(max(self._size(model).packed_bytes, 1) / max(size.packed_bytes, 1)))

        return min(self._known, key=distance, default=None)

    def _size(self, model: str) -> ModelSize:
        return self._sizes.get(model, UNKNOWN_SIZE)

    def _pass_on(self, model: str) -> None:
        """More is known of a model: what is expected of unmeasured ones is to be found anew."""
        self._known[model] = None
        for other in [name for name in self._times if name not in self._known]:
            del self._times[other]
