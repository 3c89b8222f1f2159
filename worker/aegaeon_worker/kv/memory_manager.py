"""The device as a cache of weights and KV over host memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from aegaeon_worker.device.interface import Device
from aegaeon_worker.kv.eviction import EvictionOrder
from aegaeon_worker.kv.fetches import Carry, Fetches
from aegaeon_worker.kv.hand_offs import HandOffs
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.imports import Imported
from aegaeon_worker.kv.model_memory import ModelMemory
from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.kv.prefix_keys import Prefix
from aegaeon_worker.kv.prefix_use import PrefixUse, Reused
from aegaeon_worker.kv.pulls import Pulls
from aegaeon_worker.kv.room import DeviceUsage, Room
from aegaeon_worker.kv.shape import KvShape
from aegaeon_worker.kv.tracked import SequenceEntry, SequenceTable
from aegaeon_worker.kv.transfers import TransferMeter, Transfers
from aegaeon_worker.kv.write_backs import WriteBacks
from aegaeon_worker.peers.borrowing import Borrowing
from aegaeon_worker.peers.lending import Lending, SaveOffer
from aegaeon_worker.weights.resident import ResidentWeights


class MemoryManager:
    """Decides what stays on one device when models take turns.

    KV of sequences that have ended is kept for those that begin alike while nobody needs the room.

    Eviction order: kept KV; then KV outside the turn whose host copy is complete, least recently
    planned first; then KV and weights least recently planned first, KV written back before it goes
    (weights have their clean copy in the weight cache); then wanted sequences from the back. When
    the host slabs are full, redundant host copies go first, then the youngest sequences lose their
    KV: ``take_lost`` names them, their ``stored_tokens`` is 0, and they are to be prefilled again.

    KV goes on to other workers by ``hand_off``, and comes from them with ``add_sequence``.
    """

    def __init__(
        self,
        device: Device,
        slabs: HostSlabs,
        carry: Carry | None = None,
        *,
        prefix_caching: bool = True,
        lending: Lending | None = None,
        borrowing: Borrowing | None = None,
    ) -> None:
        """``carry`` brings KV from other nodes; without ``prefix_caching`` no KV is shared.

        With ``lending`` KV can go on from this device, with ``borrowing`` come from others'.
        """
        self._prefix_caching = prefix_caching
        self._device = device
        self._slabs = slabs
        self._models: dict[str, ModelMemory] = {}
        self._table = SequenceTable(self.tidy)
        self._room = Room(device.pool, self._models)
        self._order = EvictionOrder(self._models, self._table)
        self._turn: set[int] = set()
        self.hand_offs = HandOffs(device, self._table, self.free, lending)
        """What ``hand_off`` began, and what is held for other workers."""
        self.fetches = Fetches(self._table, carry)
        """KV on its way from other nodes."""
        self.pulls = Pulls(self._table, borrowing, self._make_spare_room)
        """KV on its way from other devices of the node."""
        self.write_backs = WriteBacks(device, self._table, self._models, self._room)
        self.copy_tail = device.tail
        self._stamp = 0
        self._meter = TransferMeter()
        # Of models that are gone.
        self._past_use = PrefixUse()

    @property
    def num_sequences(self) -> int:
        """Sequences that exist, with or without KV, those held for other workers included."""
        return len(self._table)

    @property
    def transfers(self) -> Transfers:
        """What has moved between host and device since the start."""
        return self._meter.total

    @property
    def prefix_use(self) -> PrefixUse:
        """What sequences had in common since the start, and what is kept for others now."""
        kept = PrefixUse(host_bytes=self._slabs.kept_nbytes)
        return sum((model.kv.cache.use for model in self._models.values()), self._past_use + kept)

    def device_usage(self) -> DeviceUsage:
        """What occupies the device now."""
        return self._room.usage()

    def add_model(
        self,
        weights: ResidentWeights,
        shape: KvShape,
        fingerprint: str,
        *,
        prefix_caching: bool = True,
    ) -> ModelMemory:
        """Take over a model's weights and reserve its KV range.

        ``fingerprint`` is that of the weights. Without ``prefix_caching`` no two of its sequences
        share KV. ``PoolTooSmall`` if the pool cannot hold the weights and one block; ``ValueError``
        if the name is taken.
        """
        if weights.name in self._models:
            raise ValueError(f"model {weights.name} exists already")
        shares = self._prefix_caching and prefix_caching
        model = ModelMemory(
            self._device, weights, shape, fingerprint, self._slabs, self._meter, shares=shares
        )
        self._models[model.name] = model
        return model

    def remove_model(self, name: str) -> None:
        """End a model: its sequences, their KV and its weights leave the device and the host."""
        for entry in self._table.of_model(name):
            self.free(entry.sequence)
        model = self._models.pop(name)
        self._past_use += replace(model.kv.cache.use, device_bytes=0)
        model.close()

    def add_sequence(
        self,
        sequence: int,
        model: str,
        source: KvPlace | None = None,
        prefix: Prefix | None = None,
    ) -> None:
        """Start a sequence; arrival order decides who is youngest.

        It has no KV, or that which another worker left at ``source``: on this node that counts as
        stored, and is copied in by the first ``activate`` or ``grow``; ``take_imports`` tells how
        it went. From another node it comes to the slabs first, of which ``fetches`` tells.

        With a ``prefix`` it uses KV of others for its tokens: that counts as stored from the
        ``activate`` or ``grow`` on that finds it, and ``take_reused`` tells how much.
        """
        memory = self._models[model]
        memory.kv.add(sequence, source, prefix)
        self._table.add(sequence, memory)
        self.fetches.begin(self._table[sequence])
        self.pulls.begin(self._table[sequence])

    def free(self, sequence: int, *, sound: bool = True) -> None:
        """End a sequence and free its KV, which is for nobody else if it was not ``sound``."""
        entry = self._table.pop(sequence)
        self._turn.discard(sequence)
        self.hand_offs.forget(entry)
        # A model that has the device for itself needs no host copies.
        entry.model.kv.free(sequence, sound=sound, save=len(self._models) > 1)

    def tidy(self) -> bool:
        """Give host memory back that only waits for copies; whether there was any."""
        return sum(model.kv.tidy() for model in self._models.values()) > 0

    def free_all(self) -> None:
        """End every sequence."""
        for sequence in list(self._table):
            self.free(sequence)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._table

    def stored_tokens(self, sequence: int) -> int:
        """Tokens whose KV exists, on the device or the host; the others are to be computed."""
        return self._table[sequence].kv.num_tokens

    def next_key(self, sequence: int) -> bytes | None:
        """Equal for sequences that would compute the same block next; none if nobody else can."""
        return self._table[sequence].kv.next_key

    def activate(self, name: str, wants: Sequence[tuple[int, int]]) -> list[int]:
        """Begin a turn: weights on the device, and KV of as many leading ``wants`` as fit.

        ``wants`` are pairs of a sequence and the tokens it needs room for, stored ones included.
        Returns the leading sequences that fit, at least the first; ``PoolTooSmall`` and no change
        if it cannot even alone. Copies are queued: weights are behind the model's gate, KV before
        all later compute. Errors of the weight cache pass through.
        """
        model = self._models[name]
        wanted = [self._table[sequence] for sequence, _ in wants]
        foreign = [entry.sequence for entry in wanted if entry.model is not model]
        if foreign:
            raise ValueError(f"sequences {foreign} do not belong to model {name}")
        for sequence, capacity in wants[:1]:
            model.require_fit(sequence, max(capacity, self.stored_tokens(sequence)))
        self._stamp += 1
        model.last_planned = self._stamp
        self._turn = set()
        for entry in wanted:
            model.kv.share(entry.sequence)
        outside = self._order.outside(model, wanted, self._turn)
        self._room.make_for(model, wants, outside)
        victims = chain(outside, self._order.from_the_back(model, wanted, self._turn))
        self._room.place(model.load_weights, victims)
        for entry, (_, capacity) in zip(wanted, wants, strict=True):
            entry.last_planned = self._stamp
            self._turn.add(entry.sequence)
            if not self._room.place(partial(entry.ensure_capacity, capacity), victims):
                self._turn.discard(entry.sequence)
                if self._turn:
                    break
                self._bring_in_alone(entry, capacity)
        model.kv.confirm_imports()
        return [entry.sequence for entry in wanted if entry.sequence in self._turn]

    def prefetch(self, name: str) -> bool:
        """Bring the weights of another model than the turn's a piece nearer; never blocks for long.

        Whether there was nothing to do: they are there, or there is no such model.

        They take free chunks, then those of kept KV, then those of weights that are planned least
        recently; never any KV of sequences. Nothing moves unless all of them fit that way, with a
        block to spare for every sequence of the turn. If the turn grows further, they give way. A
        model that is not there is ignored.
        """
        model = self._models.get(name)
        if model is None or model.weights.resident:
            return True
        if model.weights.mapped or self._admit(model):
            model.prefetch_piece()
        return False

    def grow(self, sequence: int, capacity: int) -> bool:
        """Let a sequence of the turn's model join or continue with room for ``capacity`` tokens.

        Evicts what is outside the turn. False, and nothing of the turn changed, if that is not
        enough: preempt the youngest of the batch and try again. ``PoolTooSmall`` if it could not
        fit even alone.
        """
        entry = self._table[sequence]
        joined = sequence not in self._turn
        if not joined and entry.kv.is_ready(capacity):
            return True
        entry.model.require_fit(sequence, capacity)
        self._turn.add(sequence)
        entry.last_planned = self._stamp
        victims = self._order.outside(entry.model, [], self._turn)
        if self._room.place(partial(entry.ensure_capacity, capacity), victims):
            entry.model.kv.confirm_imports()
            return True
        if joined:
            self._turn.discard(sequence)
        return False

    def block_table(self, sequence: int) -> list[int]:
        """Device block ids in token order; ``SequenceNotResident`` if the KV is swapped out."""
        entry = self._table[sequence]
        return entry.model.kv.block_table(sequence)

    def commit(self, sequence: int, num_tokens: int) -> None:
        """Declare that the device now holds the KV of ``num_tokens`` tokens of a sequence."""
        self._table[sequence].commit(num_tokens)

    def preempt(self, sequence: int) -> None:
        """Take a sequence out of the turn and off the device; ``take_lost`` tells if KV is lost."""
        self._turn.discard(sequence)
        self._table.swap_out(self._table[sequence], self._turn)

    def hand_off(self, sequences: Sequence[int], *, on_device: bool = False) -> None:
        """Leave the KV of sequences to other workers of the node; it is not to be used here again.

        Copies are queued, unless others can read it ``on_device``; ``hand_offs`` tells when it is
        theirs.
        """
        self._turn.difference_update(sequences)
        self.hand_offs.begin(sequences, self._turn, on_device=on_device)

    def save_offer(self, request: SaveOffer) -> None:
        """Another worker wants what it was offered on the device in the slabs."""
        self.hand_offs.save(request, self._turn)

    def take_imports(self) -> list[Imported]:
        """How the copying of other workers' KV went since the last call."""
        return list(chain(*(m.kv.imports.take_outcomes() for m in self._models.values())))

    def take_reused(self) -> list[Reused]:
        """Sequences that have gone on with KV that was there, since the last call."""
        return list(chain(*(m.kv.take_reused() for m in self._models.values())))

    def take_lost(self) -> list[int]:
        """Sequences that lost their KV since the last call, in that order."""
        return self._table.take_lost()

    def audit(self) -> None:
        """Raise ``AssertionError`` unless every chunk and every block has exactly one owner."""
        self._device.pool.audit()
        for model in self._models.values():
            model.kv.audit()
        used = Counter[int]()
        for model in self._models.values():
            used[model.kv.shape.host_nbytes] += model.kv.cache.num_host_blocks
        if +used != self._slabs.audit():
            raise AssertionError(f"host blocks of sequences: {used}, in use: {self._slabs.audit()}")

    def close(self) -> None:
        """End every model."""
        for name in list(self._models):
            self.remove_model(name)

    def _make_spare_room(self, entry: SequenceEntry, take: Callable[[], None]) -> bool:
        """Call ``take``, which needs device blocks, at the expense of kept KV alone."""
        entry.last_planned = self._stamp  # it is not to be the first to leave
        return self._room.place(take, self._order.kept(entry.model))

    def _admit(self, model: ModelMemory) -> bool:
        """Free the chunks for a prefetch, if there are enough without hurting the turn."""
        turn = sum(self._table[sequence].block_nbytes for sequence in self._turn)
        reserve = self._device.pool.chunks_for(turn)
        if not self._room.make_beside(model.weights.num_chunks + reserve, self._stamp, self._order):
            return False
        # Younger than all idle models from now on, so that the turn's growth takes them first.
        model.last_planned = self._stamp
        return True

    def _bring_in_alone(self, entry: SequenceEntry, capacity: int) -> None:
        """Place the only sequence of a turn afresh: its blocks may lie scattered over chunks."""
        self._table.swap_out(entry, self._turn)
        for evict in self._order.kept(entry.model):
            evict()
        self._room.settle()
        entry.ensure_capacity(capacity)
        self._turn.add(entry.sequence)
