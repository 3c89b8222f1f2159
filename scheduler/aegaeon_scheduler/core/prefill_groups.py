"""Grouped first-come-first-served prefill, as published."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_scheduler.core.batch import Batch
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.sequence import Sequence

#: Sequences of one group at most, those that have left it included.
MAX_GROUP = 8


@dataclass(slots=True, eq=False)
class PrefillGroups:
    """Groups of one engine, in order of their first arrival."""

    groups: list[Batch] = field(default_factory=list)

    def open_group(self, model: str) -> Batch | None:
        """A group of the model that takes in more."""
        for group in self.groups:
            # A group whose last member has left ends its turn now.
            joinable = group.size < MAX_GROUP and (group.members or group.turn is None)
            if group.model == model and joinable:
                return group
        return None

    def add(self, sequence: Sequence) -> None:
        """Put a sequence into an open group, or into a new one at the end."""
        group = self.open_group(sequence.model)
        if group is None:
            group = Batch(sequence.model, {})
            self.groups.append(group)
        group.add(sequence)

    def sync(self, engine: Engine) -> list[Sequence]:
        """Drop turns that are over, sequences that are gone, and empty groups.

        Returns the sequences that have left because they have their token.
        """
        served: list[Sequence] = []
        for group in self.groups:
            if group.turn is not None and group.turn not in engine.turns:
                group.turn = None
            held = {h: s for h, s in group.members.items() if h in engine.sequences}
            served += [sequence for sequence in held.values() if sequence.has_token_here]
            group.keep([h for h, sequence in held.items() if not sequence.has_token_here])
        self.groups = [group for group in self.groups if group.members or group.turn]
        return served

    def next_groups(self, engine: Engine) -> list[Batch]:
        """Groups that can have a turn and have none, next one first."""
        return [
            group
            for group in self.groups
            if group.turn is None
            and not engine.queues[group.model].waiting.keys().isdisjoint(group.members)
        ]

    def load_ns(self, engine: Engine) -> float:
        """Estimated time to finish all groups, switches between them included."""
        estimate = engine.estimator
        total = 0.0
        for group in self.groups:
            total += estimate.switch_ns(group.model)
            for sequence in group.members.values():
                tokens = len(sequence.prompt) + len(sequence.generated)
                total += estimate.prefill_ns(group.model, tokens)
        return total
