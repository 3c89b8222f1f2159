"""The worker's spans of sequences, for those whose callers trace them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aegaeon.tracing import Tracing, fail
from aegaeon_worker.engine.commands import AddSequences, Attach, Command, SequenceSpec
from aegaeon_worker.engine.events import Event, FinishReason, SequenceFailed, StepBatch
from aegaeon_worker.kv.hand_offs import HandedOff

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class SequenceSpans:
    """A span from the command that adds a sequence to its end here, its first token an event in it.

    On the event loop.
    """

    def __init__(self, tracing: Tracing, engine: str) -> None:
        self._tracing, self._engine = tracing, engine
        self._spans: dict[int, Span] = {}
        #: Without a token so far.
        self._waiting: set[int] = set()

    def on_command(self, command: Command) -> None:
        """A command on its way to the engine."""
        if isinstance(command, Attach):  # another stream, without the sequences of this one
            for handle in list(self._spans):
                self._end(handle, "dropped")
        elif isinstance(command, AddSequences):
            for spec in command.sequences:
                if spec.trace_parent:
                    self._begin(spec)

    def on_event(self, event: Event) -> None:
        """An event on its way to the scheduler."""
        if not self._spans:
            return
        match event:
            case StepBatch():
                for handle, reason in zip(event.handles, event.finish_reasons, strict=True):
                    if handle in self._spans:
                        self._on_step(handle, reason)
            case SequenceFailed():
                if span := self._spans.get(event.handle):
                    fail(span, event.error)
                    self._end(event.handle, "failed")
            case HandedOff():
                self._end(event.sequence, "handed_off")

    def _begin(self, spec: SequenceSpec) -> None:
        attributes: dict[str, str | int | float] = {
            "request_id": spec.label,
            "model": spec.model,
            "engine": self._engine,
        }
        span = self._tracing.begin("aegaeon.sequence", spec.trace_parent, attributes)
        self._spans[spec.handle] = span
        self._waiting.add(spec.handle)

    def _on_step(self, handle: int, reason: FinishReason) -> None:
        if handle in self._waiting and reason is not FinishReason.CANCELLED:
            self._waiting.discard(handle)
            self._spans[handle].add_event("first_token")
        if reason is not FinishReason.NONE:
            self._end(handle, reason.name.lower())

    def _end(self, handle: int, outcome: str) -> None:
        span = self._spans.pop(handle, None)
        self._waiting.discard(handle)
        if span is not None:
            span.set_attribute("outcome", outcome)
            span.end()
