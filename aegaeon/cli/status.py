"""``aegaeon status``: workers, engines, models, queues; and an exit status for scripts."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import typer

from aegaeon.cli import cluster_options as options
from aegaeon.cli.target import Target, connected, find_target, within

if TYPE_CHECKING:
    from aegaeon.v1 import cluster_pb2

_READY, _NOT_READY = 0, 1
#: Width of tables that go to a file or another program.
_FILE_COLUMNS = 160


def status(
    address: options.Address = None,
    instance: options.Instance = None,
    timeout_s: options.Timeout = 5.0,
    as_json: options.Json = False,
) -> None:
    """Show workers, engines, models and queues.

    Exit status: 0 when an engine is ready and no replica has failed, 1 when not, 3 when no
    scheduler answers.
    """
    target = find_target(address, instance)
    snapshot = asyncio.run(_snapshot(target, timeout_s))
    problems = find_problems(snapshot)
    if as_json:
        from aegaeon.http.plain import plain

        found: dict[str, Any] = {"address": target.address, "url": target.url}
        print(json.dumps({**found, "problems": problems, "runtime": plain(snapshot)}, indent=2))
    else:
        _show(target, snapshot, problems)
    raise typer.Exit(_NOT_READY if problems else _READY)


def find_problems(snapshot: cluster_pb2.RuntimeSnapshot) -> list[str]:
    """What keeps the cluster from serving everything it should; none when all is well."""
    problems = []
    if not any(engine.ready for engine in snapshot.engines):
        problems.append("no engine is ready")
    problems += [
        f"worker {worker.node_id}/{worker.worker_index} is not connected"
        for worker in snapshot.workers
        if not worker.connected
    ]
    for engine in snapshot.engines:
        missing = list(engine.missing_worker_indexes)
        first, size = int(engine.engine_id.rpartition("/")[2]), len(engine.worker_indexes)
        problems += [
            f"engine {engine.engine_id} lacks worker {engine.node_id}/{index} "
            f"(rank {index - first} of {size + len(missing)})"
            for index in missing
        ]
    for model in snapshot.models:
        for replica in model.replicas:
            if replica.HasField("error"):
                reason = " ".join(replica.error.message.split())
                problems.append(f"{model.spec.name} on {replica.node_id} failed: {reason}")
    return problems


async def _snapshot(target: Target, timeout_s: float) -> cluster_pb2.RuntimeSnapshot:
    async with connected(target, timeout_s) as connection:
        return await within(timeout_s, connection.runtime())


def _show(target: Target, snapshot: cluster_pb2.RuntimeSnapshot, problems: list[str]) -> None:
    from rich.console import Console

    from aegaeon.cli.tables import duration, engine_table, model_table

    # Rich takes what is no terminal for one of 80 columns, which folds every word of the tables.
    console = Console(width=None if sys.stdout.isatty() else _FILE_COLUMNS)
    up_s = time.time() - snapshot.started_unix_ns / 1e9
    counts = snapshot.statistics
    print(f"scheduler  {target.address}, up {duration(up_s)}")
    if target.url:
        print(f"gateway    {target.url}")
    print(
        f"requests   {snapshot.active_requests} active, {snapshot.waiting_requests} of them wait "
        f"for their first token; {counts.finished} finished, {counts.cancelled} cancelled, "
        f"{counts.failed} failed, {counts.rejected} refused"
    )
    print(f"tokens     {counts.tokens}")
    console.print(engine_table(snapshot))
    if snapshot.models:
        console.print(model_table(snapshot))
    for problem in problems:
        print(f"problem: {problem}")
