"""Which cluster a subcommand talks to, and a connection to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from aegaeon.errors import ConfigError, NotRunningError, RequestTimeoutError, UnavailableError

if TYPE_CHECKING:
    from aegaeon.client.connection import Connection

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """A scheduler, and its instance's gateway if one is known."""

    address: str
    url: str = ""


def instance_name(instance: str | None) -> str:
    """The instance that is meant where none is named."""
    from aegaeon.instances.records import DEFAULT_INSTANCE

    return instance or os.environ.get("AEGAEON_INSTANCE") or DEFAULT_INSTANCE


def find_target(address: str | None, instance: str | None) -> Target:
    """The address given, else the instance given, else AEGAEON_ADDRESS, else the usual instance.

    Raises ConfigError, NotRunningError.
    """
    from aegaeon.instances.records import find_instance

    if address and instance:
        raise ConfigError("--address and --instance name two clusters; give one of them")
    address = address or (None if instance else os.environ.get("AEGAEON_ADDRESS"))
    if address:
        return Target(address)
    name = instance_name(instance)
    record = find_instance(name)
    if record is None:
        raise NotRunningError(
            f"no instance {name!r} runs here; start it with `aegaeon start`, or name a scheduler "
            "with --address or AEGAEON_ADDRESS"
        )
    if not record.address:
        raise NotRunningError(f"instance {name!r} is starting; its scheduler does not serve yet")
    return Target(record.address, record.url)


@asynccontextmanager
async def connected(target: Target, timeout_s: float) -> AsyncIterator[Connection]:
    """A connection to a scheduler that answers. Raises NotRunningError."""
    from aegaeon.client.connection import Connection

    connection = Connection(target.address)
    try:
        try:
            await connection.wait_connected(timeout_s)
        except UnavailableError as error:
            raise NotRunningError(error.message) from error
        yield connection
    finally:
        await connection.close()


async def within(timeout_s: float, call: Coroutine[Any, Any, T]) -> T:
    """The call's answer. Raises RequestTimeoutError."""
    try:
        async with asyncio.timeout(timeout_s):
            return await call
    except TimeoutError:
        raise RequestTimeoutError(
            f"the scheduler has not answered within {timeout_s:g} s"
        ) from None
