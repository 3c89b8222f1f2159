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
    #: Bytes reserved for the KV of a model, and the sums over all models.
    _kv_bytes: dict[str, int] = field(default_factory=dict)
    _all_kv_bytes: int = 0
    _all_weight_bytes: int = 0

    def used_bytes(self) -> int:
        """Everything on the device."""
        return self._all_weight_bytes + self._all_kv_bytes

    def switch(self, shape: ModelShape, now_ns: int) -> int:
        """Make room for a model's weights; returns the bytes that still have to be copied."""
        missing = 0 if shape.name in self.weights else shape.packed_bytes
        if self.fetching:
            copied = (now_ns - self.fetching_since_ns) * self.device.link_bytes_per_s / 1e9
            left = max(0, self.weights[self.fetching].packed_bytes - int(copied))
            if self.fetching == shape.name:
                missing = left
            elif left:  # half of the weights are of no use to anybody
                self._drop_weights(self.fetching)
            self.fetching = ""
        self._drop_weights(shape.name)
        self._make_room(shape.packed_bytes, spared=shape.name)
        self.weights[shape.name] = shape  # last: most recently used
        self._all_weight_bytes += shape.packed_bytes
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
        # Others of the model, in no turn now, go to host memory: the room is for these.
        now = {sequence.handle: sequence for sequence in running}
        for handle, other in self.kv.get(shape.name, {}).items():
            other.on_device = handle in now
        moved = 0
        for sequence in running:
            sequence.reserved = sequence.computed + sequence.pending
            if not sequence.on_device:
                sequence.on_device = True
                moved += sequence.computed * shape.kv_token_bytes
        self.kv[shape.name] = now
        self._set_kv_bytes(shape.name, needed)
        return running, moved

    def prefetch(self, shape: ModelShape, running: str, now_ns: int) -> None:
        """Begin to copy the next model's weights, over idle weights only and never over KV."""
        if self.fetching or shape.name in self.weights or not self.device.prefetch:
            return
        spared = self.weights[running].packed_bytes + self._all_kv_bytes
        if spared + shape.packed_bytes > self.device.pool_bytes:
            return
        free = self.device.pool_bytes - self.used_bytes()
        for name in list(self.weights):
            if free >= shape.packed_bytes:
                break
            if name != running:
                free += self._drop_weights(name)
        # In front: the turn's own growth comes first.
        self.weights = {shape.name: shape, **self.weights}
        self._all_weight_bytes += shape.packed_bytes
        self.fetching, self.fetching_since_ns = shape.name, now_ns

    def forget(self, sequence: SimulatedSequence) -> None:
        """A sequence ended or left the worker."""
        sequence.on_device = False
        held = self.kv.get(sequence.shape.name)
        if held is not None and held.pop(sequence.handle, None) is not None:
            freed = sequence.reserved * sequence.shape.kv_token_bytes
            self._set_kv_bytes(sequence.shape.name, self._kv_bytes[sequence.shape.name] - freed)

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
            self._set_kv_bytes(name, 0)
            self._drop_weights(name)
            if self.fetching == name:
                self.fetching = ""
            others = self._others(spared)

    def _others(self, spared: str) -> int:
        kept = self.weights[spared].packed_bytes if spared in self.weights else 0
        return self.used_bytes() - kept - self._kv_bytes.get(spared, 0)

    def _drop_weights(self, model: str) -> int:
        shape = self.weights.pop(model, None)
        freed = shape.packed_bytes if shape is not None else 0
        self._all_weight_bytes -= freed
        return freed

    def _set_kv_bytes(self, model: str, size: int) -> None:
        self._all_kv_bytes += size - self._kv_bytes.get(model, 0)
        self._kv_bytes[model] = size
