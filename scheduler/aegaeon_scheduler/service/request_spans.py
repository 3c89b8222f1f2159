"""The scheduler's spans of requests, for those whose callers trace them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aegaeon.tracing import Tracing, fail
from aegaeon_scheduler.core.notices import Notice, RequestChange, RequestChanged
from aegaeon_scheduler.core.state import State

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_ENDS = (RequestChange.FINISHED, RequestChange.CANCELLED, RequestChange.FAILED)


class RequestSpans:
    """A span from acceptance to end; moves between engines are events in it."""

    def __init__(self, tracing: Tracing, state: State) -> None:
        self._tracing, self._state = tracing, state
        self._spans: dict[int, Span] = {}

    def on_notice(self, notice: Notice) -> None:
        """Something that the core published."""
        if not isinstance(notice, RequestChanged):
            return
        if notice.change is RequestChange.ACCEPTED:
            self._begin(notice)
            return
        span = self._spans.get(notice.sequence_id)
        if span is None:
            return
        if notice.change not in _ENDS:
            span.add_event(notice.change.name.lower(), {"engine": notice.engine_id})
            return
        span.set_attribute("outcome", notice.change.name.lower())
        span.set_attribute("tokens", notice.tokens)
        if notice.error is not None:
            fail(span, notice.error)
        span.end()
        del self._spans[notice.sequence_id]

    def _begin(self, notice: RequestChanged) -> None:
        sequence = self._state.sequences.get(notice.sequence_id)
        if sequence is None or not sequence.trace_parent:
            return
        attributes: dict[str, str | int | float] = {
            "request_id": notice.label,
            "model": notice.model,
            "engine": notice.engine_id,
            "prompt_tokens": len(sequence.prompt),
        }
        span = self._tracing.begin("aegaeon.schedule", sequence.trace_parent, attributes)
        self._spans[notice.sequence_id] = span
