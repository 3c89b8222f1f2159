"""``aegaeon drain``: take work off workers before they are stopped."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer

from aegaeon.cli import cluster_options as options
from aegaeon.cli.target import Target, connected, find_target
from aegaeon.errors import RequestTimeoutError

if TYPE_CHECKING:
    from aegaeon.v1 import cluster_pb2

Node = Annotated[
    str,
    typer.Argument(
        help="The node; without one, the scheduler takes no new requests.", show_default=False
    ),
]
Worker = Annotated[int | None, typer.Option(min=0, help="One worker of it.")]
TimeoutS = Annotated[float, typer.Option(min=0.01, help="Time for the rest to end, seconds.")]
Resume = Annotated[bool, typer.Option("--resume", help="Take it back into service.")]


def drain(
    node: Node = "",
    worker: Worker = None,
    address: options.Address = None,
    instance: options.Instance = None,
    timeout_s: TimeoutS = 600.0,
    resume: Resume = False,
    as_json: options.Json = False,
) -> None:
    """Move the sequences of workers elsewhere, and return when the workers can be stopped.

    When the time is over the drain goes on; another call watches it again.
    """
    target = find_target(address, instance)
    drained = drain_target(target, node, worker, timeout_s, resume=resume, quiet=as_json)
    last = asyncio.run(drained)
    if as_json:
        found = {
            "drained": last.drained,
            "remaining_sequences": last.remaining_sequences,
            "unserved_models": list(last.unserved_models),
        }
        print(json.dumps(found))
    else:
        print("in service again" if resume else "drained")


async def drain_target(
    target: Target,
    node: str = "",
    worker: int | None = None,
    timeout_s: float = 600.0,
    *,
    resume: bool = False,
    quiet: bool = False,
) -> cluster_pb2.DrainResponse:
    """Drain, and tell what is left unless ``quiet``; the last answer. Raises RequestTimeoutError
    with the drain going on."""
    from aegaeon.v1 import cluster_pb2

    last = cluster_pb2.DrainResponse()
    try:
        async with asyncio.timeout(timeout_s), connected(target, timeout_s) as connection:
            async for last in connection.drain(node, worker, resume=resume):
                if not (quiet or last.drained or resume):
                    _show(last)
    except TimeoutError:
        raise RequestTimeoutError(
            f"{last.remaining_sequences} sequences are left after {timeout_s:g} s; they go on, and "
            "nothing new comes: call this again to wait on, or with --resume to take it back"
        ) from None
    return last


def _show(answer: cluster_pb2.DrainResponse) -> None:
    unserved = ", ".join(answer.unserved_models)
    print(
        f"{answer.remaining_sequences} sequences left"
        + (f"; no other engine has {unserved}" if unserved else ""),
        flush=True,
    )
