"""From a connected scheduler to nodes that are registered and models that are ready."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from aegaeon.client.connection import Connection
from aegaeon.client.policies import Policies
from aegaeon.client.session import RESUME_WINDOW_S
from aegaeon.deployment import DeployOutcome, DeployProgress
from aegaeon.errors import (
    AegaeonError,
    ErrorReason,
    PreconditionError,
    RequestTimeoutError,
    UnavailableError,
)
from aegaeon.model_spec import ModelSpec
from aegaeon.node_config import NodeConfig

_log = logging.getLogger(__name__)
_RETRY_S = 2.0

#: Told of every step of a model's loading.
ModelProgress = Callable[[str, DeployProgress], None]


async def initialise(
    connection: Connection,
    nodes: Sequence[NodeConfig],
    policies: Policies,
    *,
    demand_memory: bool,
    deadline: float,
    on_progress: ModelProgress,
) -> None:
    """Declare the nodes, and deploy their ``cached_models``; returns when all are ready.

    ``deadline`` is monotonic, ``demand_memory`` as in `Connection.apply_topology`. Raises
    UnavailableError, PreconditionError (a model that a node cannot serve), RequestTimeoutError.
    """
    await connection.wait_connected(remaining(deadline))
    if not nodes:
        return
    await connection.apply_topology(
        nodes, policies, demand_memory=demand_memory, timeout_s=remaining(deadline)
    )
    homes: dict[ModelSpec, list[str]] = {}
    for node in nodes:
        for spec in dict.fromkeys(node.cached_models):
            homes.setdefault(spec, []).append(node.node_id)
    try:
        async with asyncio.timeout(remaining(deadline)):
            # Not a task group, whose error type would hide the one that users must see.
            await asyncio.gather(
                *(_cache(connection, spec, ids, on_progress) for spec, ids in homes.items())
            )
    except TimeoutError:
        raise RequestTimeoutError(
            f"not ready in time: {', '.join(spec.name for spec in homes)}; allow more, or start "
            "with fewer models"
        ) from None


def remaining(deadline: float) -> float:
    """Seconds until a monotonic deadline, or a moment."""
    return max(0.1, deadline - time.monotonic())


async def _cache(
    connection: Connection, spec: ModelSpec, node_ids: Sequence[str], on_progress: ModelProgress
) -> None:
    outcome = await _deploy_patiently(connection, spec, node_ids, on_progress)
    for node_id, error in outcome.failed.items():
        raise PreconditionError(
            f"model {spec.name!r} could not be deployed on node {node_id!r}: {error}",
            reason=error.reason,
            metadata=error.metadata,
        ) from error


async def _deploy_patiently(
    connection: Connection, spec: ModelSpec, node_ids: Sequence[str], on_progress: ModelProgress
) -> DeployOutcome:
    """Deploy; a worker that the scheduler loses for a moment gets time to register again."""
    give_up = time.monotonic() + RESUME_WINDOW_S
    while True:
        try:
            outcome = await connection.deploy(
                spec, node_ids=node_ids, on_progress=lambda step: on_progress(spec.name, step)
            )
            problems: list[AegaeonError] = list(outcome.failed.values())
            if not any(map(_may_pass, problems)) or time.monotonic() >= give_up:
                return outcome
        except AegaeonError as error:
            if not _may_pass(error) or time.monotonic() >= give_up:
                raise
            problems = [error]
        _log.warning("deploying %s again: %s", spec.name, problems[0])
        await asyncio.sleep(_RETRY_S)


def _may_pass(error: AegaeonError) -> bool:
    """Whether a worker that was there a moment ago is missing."""
    lost = error.reason in (ErrorReason.TOPOLOGY_INVALID, ErrorReason.WORKER_LOST)
    return lost or isinstance(error, UnavailableError)
