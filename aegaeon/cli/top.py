"""``aegaeon top``: what every engine does, live."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Annotated

import typer

from aegaeon.cli import cluster_options as options
from aegaeon.cli.target import Target, connected, find_target, within
from aegaeon.errors import AegaeonError, ConfigError

if TYPE_CHECKING:
    from aegaeon.cli.rates import Rates
    from aegaeon.v1 import cluster_pb2

Interval = Annotated[
    float, typer.Option("--interval-s", min=0.1, help="Time between two looks, in seconds.")
]
Once = Annotated[
    bool, typer.Option("--once", help="Look twice, print what happened between, and end.")
]


def top(
    interval_s: Interval = 1.0,
    once: Once = False,
    address: options.Address = None,
    instance: options.Instance = None,
    timeout_s: options.Timeout = 5.0,
    as_json: options.Json = False,
) -> None:
    """Show the model on each engine, queues, tokens/s and switches/s, until Ctrl-C."""
    if as_json and not once:
        raise ConfigError("--json needs --once; aegaeon status --json has the whole snapshot")
    target = find_target(address, instance)
    if once:
        _print_once(asyncio.run(_two_looks(target, interval_s, timeout_s)), as_json)
        return
    with contextlib.suppress(KeyboardInterrupt):  # its usual end
        asyncio.run(_watch(target, interval_s, timeout_s))


async def _two_looks(target: Target, interval_s: float, timeout_s: float) -> Rates:
    from aegaeon.cli.rates import Rates

    async with connected(target, timeout_s) as connection:
        before = await within(timeout_s, connection.runtime())
        await asyncio.sleep(interval_s)
        return Rates(before, await within(timeout_s, connection.runtime()))


def _print_once(rates: Rates, as_json: bool) -> None:
    if as_json:
        print(json.dumps(rates.plain(), indent=2))
        return
    from rich.console import Console

    from aegaeon.cli.top_screen import screen

    Console().print(screen(rates))


async def _watch(target: Target, interval_s: float, timeout_s: float) -> None:
    """A scheduler that goes away is waited for; only the first look must succeed."""
    from rich.live import Live
    from rich.text import Text

    from aegaeon.cli.rates import Rates
    from aegaeon.cli.top_screen import screen

    async with connected(target, timeout_s) as connection:
        before: cluster_pb2.RuntimeSnapshot = await within(timeout_s, connection.runtime())
        with Live(Text("..."), screen=True, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(interval_s)
                try:
                    now = await within(timeout_s, connection.runtime())
                except AegaeonError as error:
                    live.update(Text(f"{error}; trying again"), refresh=True)
                    continue
                live.update(screen(Rates(before, now)), refresh=True)
                before = now
