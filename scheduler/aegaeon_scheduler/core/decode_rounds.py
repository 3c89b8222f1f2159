"""Decode in rounds of turns with quotas, as published."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_scheduler.core.batch import Batch
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.quota import round_quotas
from aegaeon_scheduler.core.sequence import Sequence

#: Longest quota, as published.
MAX_QUOTA_NS = 4_000_000_000


@dataclass(slots=True, eq=False)
class DecodeRounds:
    """Batches of one engine in order of their arrival; each gets its quota once a round."""

    batches: list[Batch] = field(default_factory=list)
    #: Of the present round, not yet at the worker, with their quotas.
    _round: list[tuple[Batch, int]] = field(default_factory=list)

    def mergeable(self, engine: Engine, sequence: Sequence) -> Batch | None:
        """A batch of the sequence's model that has room for it."""
        for batch in self.batches:
            if (
                batch.model == sequence.model
                and (batch.members or batch.turn is None)
                and _fit(engine, batch, [sequence])
            ):
                return batch
        return None

    def add(self, engine: Engine, sequence: Sequence) -> None:
        """Put a sequence into a batch of its model, or into a new one at the end."""
        batch = self.mergeable(engine, sequence)
        if batch is None:
            batch = Batch(sequence.model, {})
            self.batches.append(batch)
        batch.add(sequence)

    def sync(self, engine: Engine, complete: bool) -> None:
        """Drop turns that are over, sequences that are gone unless ``complete``, empty batches."""
        for batch in self.batches:
            if batch.turn is not None and batch.turn not in engine.turns:
                batch.turn = None
            if not complete:
                batch.keep([handle for handle in batch.members if handle in engine.sequences])
        self.batches = [batch for batch in self.batches if batch.members or batch.turn]
        self._round = [entry for entry in self._round if entry[0].members]

    def next_batch(self, engine: Engine) -> tuple[Batch, int] | None:
        """The next batch to queue, and its quota in ns; None when none waits."""
        entry = self._first_of_round(engine)
        if entry is None:
            self._begin_round(engine)
            entry = self._first_of_round(engine)
        if entry is not None:
            self._round.remove(entry)
        return entry

    def _first_of_round(self, engine: Engine) -> tuple[Batch, int] | None:
        # A batch that ends its turn of the round before just now is not left out, but comes later.
        return next((entry for entry in self._round if _runnable(engine, entry[0])), None)

    def waits_since(self, engine: Engine, then_ns: int) -> bool:
        """Whether a batch has been waiting since ``then_ns`` or longer."""
        return any(
            _runnable(engine, batch) and engine.queues[batch.model].since_ns <= then_ns
            for batch in self.batches
        )

    def following(self, engine: Engine) -> str:
        """The model that will follow the turns at the worker."""
        ahead = [batch.model for batch, _ in self._round if _runnable(engine, batch)]
        return next(iter(ahead or [turn.model for turn in engine.turns]), "")

    def quota_ns(self, engine: Engine, batch: Batch, alone: bool) -> int:
        """Quota of a batch at the worker: none while nothing else waits."""
        planned = 0 if batch.turn is None else batch.turn.quota_ns
        if alone:
            return 0
        return planned or self._quotas(engine).get(batch, 1)

    def _begin_round(self, engine: Engine) -> None:
        """Merge what fits together, put models together, first come first, and give quotas."""
        self._merge(engine)
        models = list(dict.fromkeys(batch.model for batch in self.batches))
        ordered = sorted(self.batches, key=lambda batch: models.index(batch.model))
        quotas = self._quotas(engine)
        alone = len(quotas) == 1
        self._round = [(b, 0 if alone else quotas[b]) for b in ordered if b in quotas]

    def _merge(self, engine: Engine) -> None:
        kept: list[Batch] = []
        for batch in self.batches:
            into = next(
                (
                    other
                    for other in kept
                    if batch.turn is None
                    and other.turn is None
                    and other.model == batch.model
                    and _fit(engine, other, list(batch.members.values()))
                ),
                None,
            )
            if into is None:
                kept.append(batch)
                continue
            into.members.update(batch.members)
            into.begun |= batch.begun
        self.batches = kept

    def _quotas(self, engine: Engine) -> dict[Batch, int]:
        """Quotas in ns of all batches that are not about to end."""
        estimate = engine.estimator
        batches = [batch for batch in self.batches if batch.members]
        if not batches:
            return {}
        models = dict.fromkeys(batch.model for batch in batches)
        quotas = round_quotas(
            [estimate.step_ns(b.model, len(b.members), _context(b)) for b in batches],
            sum(estimate.switch_ns(model) for model in models),
            [min(s.slo.tpot_ns for s in b.members.values()) for b in batches],
            MAX_QUOTA_NS,
        )
        return {b: max(1, int(quota)) for b, quota in zip(batches, quotas, strict=True)}


def _context(batch: Batch) -> int:
    return sum(len(s.prompt) + len(s.generated) for s in batch.members.values())


def _fit(engine: Engine, batch: Batch, more: list[Sequence]) -> bool:
    identity = engine.identity
    return batch.fits(more, identity.device.pool_bytes, identity.max_batch_sequences)


def _runnable(engine: Engine, batch: Batch) -> bool:
    if batch.turn is not None:
        return False
    queue = engine.queues.get(batch.model)
    return queue is not None and not queue.waiting.keys().isdisjoint(batch.members)
