"""The memory of a simulated device: a cache of weights and KV over host memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_scheduler.simulator.catalog import Device, ModelShape


@dataclass(slots=True, eq=False)
class SimulatedSequence:
    """A sequence on a worker; lengths in tokens."""

    handle: int
    shape: ModelShape
    #: Not yet computed, and computed so far.
    pending: int
    computed: int
    #: Still to be generated.
    remaining: int
    #: Its KV is on the device; otherwise it is in host memory.
    on_device: bool = False
    #: Device memory reserved for it, in tokens, while it is there.
    reserved: int = 0

    @property
    def kv_bytes(self) -> int:
        """KV of all tokens there are, which the next step needs."""
        return (self.computed + self.pending) * self.shape.kv_token_bytes


@dataclass(slots=True, eq=False)
class DevicePool:
    """Which weights and whose KV are on a device, least recently used model first."""

    device: Device
    weights: dict[str, ModelShape] = field(default_factory=dict)
    #: Sequences with KV on the device, by model.
    kv: dict[str, dict[int, SimulatedSequence]] = field(default_factory=dict)
    #: The model whose weights are being prefetched, and since when.
    fetching: str = ""
    fetching_since_ns: int = 0

    def used_bytes(self) -> int:
        """Everything on the device."""
        return sum(shape.packed_bytes for shape in self.weights.values()) + sum(
            map(self._kv_bytes, self.kv)
        )

    def switch(self, shape: ModelShape, now_ns: int) -> int:
        """Make room for a model's weights; returns the bytes that still have to be copied."""
        missing = 0 if shape.name in self.weights else shape.packed_bytes
        if self.fetching:
            copied = (now_ns - self.fetching_since_ns) * self.device.link_bytes_per_s / 1e9
            left = max(0, self.weights[self.fetching].packed_bytes - int(copied))
            if self.fetching == shape.name:
                missing = left
            elif left:  # half of the weights are of no use to anybody
                del self.weights[self.fetching]
            self.fetching = ""
        self.weights.pop(shape.name, None)
        self._make_room(shape.packed_bytes, spared=shape.name)
        self.weights[shape.name] = shape  # last: most recently used
        return missing

    def fit(
        self, shape: ModelShape, members: list[SimulatedSequence]
    ) -> tuple[list[SimulatedSequence], int]:
        """The members, in order, that have room, and the bytes of KV to copy in for them."""
        needed = sum([sequence.kv_bytes for sequence in members])
        self._make_room(needed + shape.packed_bytes, spared=shape.name)
        room = self.device.pool_bytes - self._others(shape.name) - shape.packed_bytes
        running = list(members)
        while needed > room and running:
            last = running.pop()
            needed -= last.kv_bytes
            last.on_device = False
        moved = 0
        for sequence in running:
            sequence.reserved = sequence.computed + sequence.pending
            if not sequence.on_device:
                sequence.on_device = True
                moved += sequence.computed * shape.kv_token_bytes
        self.kv[shape.name] = {sequence.handle: sequence for sequence in running}
        return running, moved

    def prefetch(self, shape: ModelShape, running: str, now_ns: int) -> None:
        """Begin to copy the next model's weights, over idle weights only and never over KV."""
        if self.fetching or shape.name in self.weights or not self.device.prefetch:
            return
        spared = self.weights[running].packed_bytes + sum(map(self._kv_bytes, self.kv))
        if spared + shape.packed_bytes > self.device.pool_bytes:
            return
        free = self.device.pool_bytes - self.used_bytes()
        for name in list(self.weights):
            if free >= shape.packed_bytes:
                break
            if name != running:
                free += self.weights.pop(name).packed_bytes
        # In front: the turn's own growth comes first.
        self.weights = {shape.name: shape, **self.weights}
        self.fetching, self.fetching_since_ns = shape.name, now_ns

    def forget(self, sequence: SimulatedSequence) -> None:
        """A sequence ended or left the worker."""
        sequence.on_device = False
        held = self.kv.get(sequence.shape.name)
        if held is not None:
            held.pop(sequence.handle, None)

    def _make_room(self, needed: int, spared: str) -> None:
        """Evict other models' weights and KV, least recently used first, until it fits."""
        others = self._others(spared)
        for name in [*self.weights, *self.kv]:
            if others + needed <= self.device.pool_bytes:
                return
            if name == spared:
                continue
            for sequence in self.kv.pop(name, {}).values():
                sequence.on_device = False
            self.weights.pop(name, None)
            if self.fetching == name:
                self.fetching = ""
            others = self._others(spared)

    def _others(self, spared: str) -> int:
        total = 0
        for name, shape in self.weights.items():
            if name != spared:
                total += shape.packed_bytes
        for name in self.kv:
            if name != spared:
                total += self._kv_bytes(name)
        return total

    def _kv_bytes(self, model: str) -> int:
        held = self.kv[model].values()
        return sum([sequence.reserved * sequence.shape.kv_token_bytes for sequence in held])
