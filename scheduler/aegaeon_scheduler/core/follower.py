"""A worker that another one drives."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_scheduler.core.values import WorkerIdentity


@dataclass(frozen=True, slots=True)
class Follower:
    """One registration of a rank other than 0: known, watched, and never dialled."""

    epoch: int
    identity: WorkerIdentity
