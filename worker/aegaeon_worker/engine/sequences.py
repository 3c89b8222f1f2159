"""The sequences that an engine knows, from the command that adds them to their end."""

from __future__ import annotations

from collections.abc import Iterable

from aegaeon.errors import AegaeonError, EngineError
from aegaeon_worker.engine import commands as cmd
from aegaeon_worker.engine.admission import admit, prefix_of
from aegaeon_worker.engine.events import FinishReason, SequenceFailed, StepBatch
from aegaeon_worker.engine.lost_kv import LostKv
from aegaeon_worker.engine.model_table import ModelTable
from aegaeon_worker.engine.request_log import log_failure
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.engine.teller import Teller
from aegaeon_worker.engine.turn import Turn
from aegaeon_worker.grammar.constraints import Constraints
from aegaeon_worker.kv.memory_manager import MemoryManager
from aegaeon_worker.peers.lender import LenderGone, PullAnswered
from aegaeon_worker.peers.lending import SaveOffer


class Sequences:
    """Keeps memory's account of sequences in step, and tells how they end."""

    def __init__(
        self,
        models: ModelTable,
        memory: MemoryManager,
        constraints: Constraints,
        teller: Teller,
    ) -> None:
        self._models = models
        self._memory = memory
        self._constraints = constraints
        self._teller = teller
        self._known: dict[int, Sequence] = {}
        self.lost = LostKv()
        """Those of them that lost their KV."""

    def of(self, turn: Turn) -> list[Sequence]:
        """The members of a turn that exist, in order of precedence."""
        found = (self._known.get(handle) for handle in turn.members)
        return [sequence for sequence in found if sequence is not None]

    def alive(self, sequence: Sequence) -> bool:
        """Whether a sequence has neither ended nor gone elsewhere."""
        return self._known.get(sequence.handle) is sequence

    def use(self, model: str) -> bool:
        """Whether any of them is of a model."""
        return any(sequence.model == model for sequence in self._known.values())

    def add(self, specs: Iterable[cmd.SequenceSpec]) -> None:
        """Take sequences in; one that cannot be fails."""
        for spec in specs:
            try:
                if spec.handle in self._memory:
                    raise EngineError(f"sequence {spec.handle} exists already")
                sequence = admit(spec, self._models.get(spec.model), self._constraints)
            except AegaeonError as error:
                self._teller.tell(SequenceFailed(spec.handle, error))
                continue
            self._known[spec.handle] = sequence
            prefix = prefix_of(spec, sequence)
            self._memory.add_sequence(spec.handle, spec.model, spec.kv, prefix)
        self._teller.tell_arrived()

    def hand_off(self, handles: list[int], *, on_device: bool) -> None:
        """Let sequences go on elsewhere; no turn of this engine has a use for them any more."""
        for handle in handles:
            del self._known[handle]
        self._memory.hand_off(handles, on_device=on_device)

    def hear_peer(self, word: PullAnswered | LenderGone | SaveOffer) -> None:
        """Another worker of the node lends, ends, or wants what it was offered in the slabs."""
        match word:
            case PullAnswered():
                self._memory.pulls.answered(word)
            case LenderGone():
                self._memory.pulls.lender_gone(word)
            case SaveOffer():
                self._memory.save_offer(word)
        self._teller.tell_arrived()

    def free(self, handles: list[int], *, cancel: bool) -> None:
        """Free what was handed off, of which nothing is left to tell, and perhaps end the rest."""
        self._memory.hand_offs.release(handles)
        batch = StepBatch(turn_id=0)
        for handle in handles:
            if cancel and handle in self._memory:
                self.forget(handle)
                batch.add(handle, 0, FinishReason.CANCELLED)
        if batch.handles:
            self._teller.tell(batch)

    def fail(self, failures: Iterable[SequenceFailed]) -> None:
        """End sequences with an error; their KV is for nobody else."""
        for failure in failures:
            sequence = self._known.get(failure.handle)
            if sequence is not None:
                log_failure(sequence, failure.error)
            self.forget(failure.handle, sound=False)
            self._teller.tell(failure)

    def forget(self, handle: int, *, sound: bool = True) -> None:
        """A sequence has ended, which was told or will be."""
        self._known.pop(handle, None)  # none: it was about to be handed off
        self.lost.settle([handle])
        self._memory.free(handle, sound=sound)

    def clear(self) -> None:
        """Drop all of them without a word."""
        self.lost = LostKv()
        self._known.clear()
        self._memory.free_all()
