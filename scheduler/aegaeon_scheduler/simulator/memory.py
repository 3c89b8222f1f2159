"""The memory of a simulated device: a cache of weights and KV over host memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_scheduler.core.prefix_chain import PrefixChain
from aegaeon_scheduler.simulator.catalog import Device, ModelShape
from aegaeon_scheduler.simulator.kept_prefixes import KeptPrefixes


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
    #: Of those computed, tokens whose KV another engine has left in host memory.
    imported: int = 0
    #: Generated here.
    made: int = 0
    #: Of those computed, tokens that the device had kept, and of these, those since it last ran.
    found: int = 0
    reused: int = 0
    #: Names of its blocks; None where they are of no use to anybody.
    chain: PrefixChain | None = None
    #: Its KV is on the device; otherwise it is in host memory.
    on_device: bool = False
    #: Device memory reserved for it, in tokens, while it is there.
    reserved: int = 0

    @property
    def next_block(self) -> int | None:
        """Name of the block that it computes next, unless there is none yet."""
        if self.chain is None:
            return None
        block = self.computed // self.chain.block_tokens
        return self.chain.names[block] if block < len(self.chain.names) else None

    @property
    def kv_bytes(self) -> int:
        """KV of all tokens there are, which the next step needs."""
        return (self.computed + self.pending) * self.shape.kv_token_bytes


@dataclass(slots=True, eq=False)
class DevicePool:
    """Which weights and whose KV are on a device, and which model was planned when."""

    device: Device
    weights: dict[str, ModelShape] = field(default_factory=dict)
    #: Sequences with KV on the device, by model.
    kv: dict[str, dict[int, SimulatedSequence]] = field(default_factory=dict)
    #: The model whose weights are being prefetched, and since when.
    fetching: str = ""
    fetching_since_ns: int = 0
    #: KV of prompts and answers that other sequences may use.
    kept: KeptPrefixes = field(default_factory=KeptPrefixes)
    #: Models that have had something here, least recently planned first.
    _planned: dict[str, None] = field(default_factory=dict)
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
        if self.fetching == shape.name:
            missing = self._left_bytes(now_ns)
            self.fetching = ""
        elif self.fetching:  # goes on once the link has served the turn
            self.fetching_since_ns += round(missing / self.device.link_bytes_per_s * 1e9)
        self._planned.pop(shape.name, None)
        self._planned[shape.name] = None
        self._drop_weights(shape.name)
        self._make_room(shape.packed_bytes, spared=shape.name)
        self._add_weights(shape)
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
                moved += (sequence.computed - sequence.reused) * shape.kv_token_bytes
                sequence.reused = 0
        self.kv[shape.name] = now
        self._set_kv_bytes(shape.name, needed)
        return running, moved

    def reuse(self, sequence: SimulatedSequence) -> bool:
        """Let a sequence whose prompt is not complete go on with what is kept; whether it does."""
        chain = sequence.chain
        if sequence.pending < 2 or chain is None or sequence.computed % chain.block_tokens:
            return False
        # The last token is computed always.
        usable = (sequence.pending - 1) // chain.block_tokens * chain.block_tokens
        found = min(self.kept.find(chain, sequence.computed, self._free_bytes), usable)
        sequence.found += found
        sequence.computed += found
        sequence.pending -= found
        if not sequence.on_device:
            sequence.reused += found
        return found > 0

    def keep(self, sequence: SimulatedSequence) -> None:
        """What a sequence has computed so far may be used by others."""
        if sequence.chain is not None:
            token_bytes = sequence.shape.kv_token_bytes
            self.kept.keep(sequence.chain, sequence.computed, token_bytes, self._free_bytes)

    def prefetch(self, shapes: list[ModelShape], running: str, now_ns: int) -> None:
        """Copy the first of some models that is not there, over idle weights and never over KV."""
        if self.fetching and not self._left_bytes(now_ns):
            self.fetching = ""
        spared = {running}
        for shape in shapes:
            if shape.name == self.fetching:
                return
            if shape.name not in self.weights:
                if self.device.prefetch:
                    self._begin_fetch(shape, spared, now_ns)
                return
            spared.add(shape.name)

    def _begin_fetch(self, shape: ModelShape, spared: set[str], now_ns: int) -> None:
        if self.fetching:  # the link is wanted for another model
            self._drop_weights(self.fetching)
            self.fetching = ""
        kept = sum(self.weights[name].packed_bytes for name in spared)
        if kept + self._all_kv_bytes + shape.packed_bytes > self.device.pool_bytes:
            return
        free = self.device.pool_bytes - self.used_bytes()
        for name in self._planned:
            if free >= shape.packed_bytes:
                break
            if name not in spared:
                free += self._drop_weights(name)
        # Just behind the running model: if that grows further, idle ones give way first.
        running = next(reversed(self._planned))
        del self._planned[running]
        self._planned.pop(shape.name, None)
        self._planned |= {shape.name: None, running: None}
        self._add_weights(shape)
        self.fetching, self.fetching_since_ns = shape.name, now_ns

    def forget(self, sequence: SimulatedSequence) -> None:
        """A sequence ended or left the worker."""
        sequence.on_device = False
        held = self.kv.get(sequence.shape.name)
        if held is not None and held.pop(sequence.handle, None) is not None:
            freed = sequence.reserved * sequence.shape.kv_token_bytes
            self._set_kv_bytes(sequence.shape.name, self._kv_bytes[sequence.shape.name] - freed)

    @property
    def _free_bytes(self) -> int:
        return self.device.pool_bytes - self.used_bytes()

    def _left_bytes(self, now_ns: int) -> int:
        """What is still to be copied of the model that is being fetched."""
        copied = (now_ns - self.fetching_since_ns) * self.device.link_bytes_per_s / 1e9
        return max(0, self.weights[self.fetching].packed_bytes - int(copied))

    def _make_room(self, needed: int, spared: str) -> None:
        """Evict other models, least recently planned first and KV before weights, until it fits."""
        limit = self.device.pool_bytes - needed
        for name in self._planned:
            if self._others(spared) <= limit:
                return
            if name == spared:
                continue
            for sequence in self.kv.pop(name, {}).values():
                sequence.on_device = False
            self._set_kv_bytes(name, 0)
            if self._others(spared) > limit:
                self._drop_weights(name)
                if self.fetching == name:
                    self.fetching = ""

    def _others(self, spared: str) -> int:
        kept = self.weights[spared].packed_bytes if spared in self.weights else 0
        return self.used_bytes() - kept - self._kv_bytes.get(spared, 0)

    def _add_weights(self, shape: ModelShape) -> None:
        self.weights[shape.name] = shape
        self._all_weight_bytes += shape.packed_bytes

    def _drop_weights(self, model: str) -> int:
        shape = self.weights.pop(model, None)
        freed = shape.packed_bytes if shape is not None else 0
        self._all_weight_bytes -= freed
        return freed

    def _set_kv_bytes(self, model: str, size: int) -> None:
        self._all_kv_bytes += size - self._kv_bytes.get(model, 0)
        self._kv_bytes[model] = size
