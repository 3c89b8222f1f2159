"""``aegaeon deploy`` and ``aegaeon undeploy``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from aegaeon.cli import cluster_options as options
from aegaeon.cli.target import Target, connected, find_target

if TYPE_CHECKING:
    from aegaeon.client.known_spec import SpecChanges
    from aegaeon.deployment import DeployOutcome, UndeployOutcome
    from aegaeon.errors import AegaeonError

_FAILED_IN_PART = 1


def deploy(
    model: options.ModelName,
    path: options.ModelPath = None,
    replicas: options.Replicas = 1,
    node: options.NodeIds = None,
    max_model_len: options.MaxModelLen = None,
    dtype: options.DType = None,
    ttft_slo_s: options.TtftSlo = None,
    tpot_slo_s: options.TpotSlo = None,
    tool_parser: options.ToolParser = None,
    trust_remote_code: options.TrustRemoteCode = False,
    address: options.Address = None,
    instance: options.Instance = None,
    timeout_s: options.Timeout = 5.0,
    as_json: options.Json = False,
) -> None:
    """Make a model ready on one or more nodes. What is not said stays as it is deployed.

    Exit status: 0 when it is ready on all of them, 1 when some or all have failed.
    """
    from aegaeon.client.known_spec import SpecChanges

    target = find_target(address, instance)
    folder = None if path is None else str(path)
    changes = SpecChanges(
        folder, max_model_len, dtype, ttft_slo_s, tpot_slo_s, tool_parser=tool_parser
    )
    work = _deploy(target, timeout_s, model, changes, trust_remote_code, replicas, node or ())
    outcome = asyncio.run(work)
    if as_json:
        evicted = [{"node_id": one.node_id, "model": one.model} for one in outcome.evicted]
        _print_json(model, "ready", outcome.ready, outcome.failed, {"evicted": evicted})
    else:
        print(f"{model} is ready on {', '.join(outcome.ready)}.")
        for one in outcome.evicted:
            print(f"{one.model} had to leave {one.node_id}.")
        _print_failed(model, outcome.failed)
    raise typer.Exit(_FAILED_IN_PART if outcome.failed else 0)


def undeploy(
    model: options.ModelName,
    node: options.NodeIds = None,
    address: options.Address = None,
    instance: options.Instance = None,
    timeout_s: options.Timeout = 5.0,
    as_json: options.Json = False,
) -> None:
    """Let a model finish what it has, and remove it from the nodes named, or from all."""
    target = find_target(address, instance)
    outcome = asyncio.run(_undeploy(target, timeout_s, model, node or ()))
    if as_json:
        _print_json(model, "removed", outcome.removed, outcome.failed, {})
    else:
        print(f"{model} has left {', '.join(outcome.removed) or 'no node'}.")
        _print_failed(model, outcome.failed)
    raise typer.Exit(_FAILED_IN_PART if outcome.failed else 0)


async def _deploy(
    target: Target,
    timeout_s: float,
    name: str,
    changes: SpecChanges,
    trust_remote_code: bool,
    replicas: int,
    nodes: Sequence[str],
) -> DeployOutcome:
    from aegaeon.cli.progress import StepView
    from aegaeon.client.known_spec import completed_spec
    from aegaeon.instances.steps import Step

    view = StepView()
    try:
        async with connected(target, timeout_s) as connection:
            spec = await completed_spec(connection, name, changes)
            if trust_remote_code:
                spec = replace(spec, trust_remote_code=True)
            return await connection.deploy(
                spec,
                replica_count=replicas,
                node_ids=nodes,
                on_progress=lambda progress: view(Step.of_model(name, progress)),
            )
    finally:
        view.stop()


async def _undeploy(
    target: Target, timeout_s: float, name: str, nodes: Sequence[str]
) -> UndeployOutcome:
    async with connected(target, timeout_s) as connection:
        return await connection.undeploy(name, nodes)


def _print_json(
    model: str,
    key: str,
    nodes: Sequence[str],
    failed: Mapping[str, AegaeonError],
    more: Mapping[str, object],
) -> None:
    reasons = {
        node: {"reason": error.reason.name, "message": error.message}
        for node, error in failed.items()
    }
    print(json.dumps({"model": model, key: list(nodes), "failed": reasons, **more}))


def _print_failed(model: str, failed: Mapping[str, AegaeonError]) -> None:
    for node, error in failed.items():
        print(f"{model} failed on {node}: {error.reason.name}: {' '.join(error.message.split())}")
