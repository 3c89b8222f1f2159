"""How long switches and moves of KV take on one kind of device."""

from __future__ import annotations

from aegaeon_scheduler.core.estimation.prior import DeviceSpeed
from aegaeon_scheduler.core.estimation.recursive_fit import RecursiveFit

#: Weight of the newest switch in what a switch of its model usually moves.
_GAIN = 0.2
#: Standard deviation of a coefficient of the prior, relative to it.
_UNCERTAINTY = 2.0
#: A move of KV costs this share of the fixed cost of a switch.
_MOVE_SHARE = 0.05


class CopyTimes:
    """Switches and moves are a fixed cost plus bytes at the speed of the link.

    What a switch moves is learned per model: prefetching spares a part of the weights, and members
    bring their KV.
    """

    __slots__ = ("_moved", "_swap", "_switch")

    def __init__(self, speed: DeviceSpeed) -> None:
        byte_ns = 1e9 / speed.host_link_bytes_per_s
        self._switch = _fit([speed.switch_ns, byte_ns, byte_ns])
        self._swap = _fit([speed.switch_ns * _MOVE_SHARE, byte_ns])
        #: Bytes of weights and KV that a switch to a model moves.
        self._moved: dict[str, tuple[float, float]] = {}

    def switch_ns(self, model: str, packed_bytes: int) -> float:
        """A switch to a model; all of its weights before the first one was measured."""
        weights, kv = self._moved.get(model, (packed_bytes, 0.0))
        return self._switch.predict((1.0, weights, kv))

    def fetch_ns(self, packed_bytes: int) -> float:
        """Copying all of a model's weights to the device."""
        return self._switch.predict((1.0, packed_bytes, 0.0))

    def swap_ns(self, nbytes: float) -> float:
        """Moving KV between host and device, in one direction."""
        return self._swap.predict((1.0, nbytes))

    def observe_switch(self, model: str, time_ns: int, weight_bytes: int, kv_bytes: int) -> None:
        """Beginning a turn took so long, and moved so much."""
        weights, kv = self._moved.get(model, (weight_bytes, kv_bytes))
        self._moved[model] = (
            weights + _GAIN * (weight_bytes - weights),
            kv + _GAIN * (kv_bytes - kv),
        )
        if time_ns > 0:
            self._switch.observe((1.0, weight_bytes, kv_bytes), time_ns)

    def observe_swap(self, time_ns: int, nbytes: int) -> None:
        """Moving KV took so long."""
        if time_ns > 0 and nbytes > 0:
            self._swap.observe((1.0, nbytes), time_ns)

    def forget(self, model: str) -> None:
        """A model's files have changed."""
        self._moved.pop(model, None)


def _fit(prior: list[float]) -> RecursiveFit:
    return RecursiveFit(prior, [_UNCERTAINTY * c for c in prior])
