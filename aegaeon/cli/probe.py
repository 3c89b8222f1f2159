"""``aegaeon probe``: a health check for whoever restarts containers."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from aegaeon.errors import UnavailableError

Address = Annotated[str, typer.Argument(help="host:port or unix:path of a scheduler or worker.")]
Service = Annotated[str, typer.Option(help="One of its services.", show_default="all of it")]
Live = Annotated[
    bool,
    typer.Option(
        "--live",
        help="Any answer will do, also that of a scheduler that is drained.",
    ),
]
TimeoutS = Annotated[float, typer.Option(min=0.01, help="Time to answer, seconds.")]


def probe(
    address: Address, service: Service = "", live: Live = False, timeout_s: TimeoutS = 3.0
) -> None:
    """Ask a daemon's health service; exit status 0 while it serves, with --live while it answers.

    Needs no key. Certificates come from the environment, see docs/security.md.
    """
    status = asyncio.run(_status(address, service, timeout_s))
    if status != "SERVING" and not live:
        raise UnavailableError(f"{address}: {status}")
    print(status)


async def _status(address: str, service: str, timeout_s: float) -> str:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from aegaeon.rpc.channel import open_channel
    from aegaeon.security.settings import SecuritySettings

    request = health_pb2.HealthCheckRequest(service=service)
    async with open_channel(address, SecuritySettings.from_environment()) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise UnavailableError(f"{address}: {error.code().name}: {error.details()}") from error
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
