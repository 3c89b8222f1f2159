"""Sequences that failed in the worker's log, under the ids that their callers gave them."""

from __future__ import annotations

import logging

from aegaeon_worker.engine.sequence import Sequence

logger = logging.getLogger(__name__)


def log_failure(
    sequence: Sequence, problem: BaseException | str, cause: BaseException | None = None
) -> None:
    """Tell why a sequence failed; with the traceback of a ``cause`` that nobody expected."""
    logger.log(
        logging.WARNING if cause is None else logging.ERROR,
        "request %s of %s failed: %s",
        sequence.label,
        sequence.model,
        problem,
        exc_info=cause,
        extra={"fields": {"request_id": sequence.label, "model": sequence.model}},
    )
