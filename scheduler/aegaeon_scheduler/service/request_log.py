"""The ends of requests in the scheduler's log, under the ids that their callers gave them."""

from __future__ import annotations

import logging

from aegaeon.errors import ErrorReason
from aegaeon_scheduler.core.notices import Notice, RequestChange, RequestChanged

_log = logging.getLogger(__name__)

_ENDS = {
    RequestChange.FINISHED: logging.DEBUG,
    RequestChange.CANCELLED: logging.DEBUG,
    RequestChange.RECOVERED: logging.INFO,
    RequestChange.FAILED: logging.WARNING,
}
#: Ends that the caller asked for, or that everybody meets when the daemon stops.
_EXPECTED = {ErrorReason.DEADLINE_EXCEEDED, ErrorReason.SHUTTING_DOWN}


def log_request(notice: Notice) -> None:
    """Tell how a request ended, or that it moved after a loss: failures as warnings, the rest for
    those who look closer."""
    if not isinstance(notice, RequestChanged):
        return
    level = _ENDS.get(notice.change)
    error = notice.error
    if level is None:
        return
    if error is not None and error.reason in _EXPECTED:
        level = logging.INFO
    if not _log.isEnabledFor(level):
        return
    _log.log(
        level,
        "request %s of %s %s on %s with %d tokens%s",
        notice.label,
        notice.model,
        notice.change.name.lower(),
        notice.engine_id or "no engine",
        notice.tokens,
        "" if error is None else f": {error}",
        extra={
            "fields": {
                "request_id": notice.label,
                "model": notice.model,
                "engine": notice.engine_id,
                "tokens": notice.tokens,
                "code": "" if error is None else error.name.lower(),
            }
        },
    )
