"""A channel whose calls carry the token, and show the certificate, of the moment they begin at.

Interceptors could add the token as well, but put a queue into every stream; call credentials of
gRPC work on encrypted connections only, and its channel credentials never change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import grpc

from aegaeon.security.tls import ClientFiles
from aegaeon.security.token import Token


class AuthorizedChannel(grpc.aio.Channel):
    """Dials again with renewed certificates, for calls from then on.

    Calls that are open stay where they are until the next renewal ends them, as a loss of the
    connection would.
    """

    def __init__(
        self, dial: Callable[[], grpc.aio.Channel], token: Token, files: ClientFiles | None
    ) -> None:
        self._dial, self._token, self._files = dial, token, files
        self._seen = None if files is None else files.current()
        self._channel: Any = dial()  # its published stubs lack what newer generators pass
        self._retired: Any = None
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """See `grpc.aio.Channel`, as with all below."""
        await asyncio.gather(*self._closing)
        if self._retired is not None:
            await self._retired.close(grace)
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:  # noqa: D102
        state: grpc.ChannelConnectivity = self._channel.get_state(try_to_connect)
        return state

    async def wait_for_state_change(  # noqa: D102
        self, last_observed_state: grpc.ChannelConnectivity
    ) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:  # noqa: D102
        await self._channel.channel_ready()

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:  # noqa: D102
        return self._call(lambda channel: channel.unary_unary(*arguments, **options))

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:  # noqa: D102
        return self._call(lambda channel: channel.unary_stream(*arguments, **options))

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:  # noqa: D102
        return self._call(lambda channel: channel.stream_unary(*arguments, **options))

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:  # noqa: D102
        return self._call(lambda channel: channel.stream_stream(*arguments, **options))

    def _call(self, prepare: Callable[[Any], Callable[..., Any]]) -> Callable[..., Any]:
        made: tuple[Any, Callable[..., Any]] | None = None

        def begin(*arguments: Any, metadata: Any = (), **options: Any) -> Any:
            nonlocal made
            self._renew()
            if made is None or made[0] is not self._channel:
                made = (self._channel, prepare(self._channel))
            own = self._token.metadata()
            return made[1](*arguments, metadata=(*(metadata or ()), *own), **options)

        return begin

    def _renew(self) -> None:
        """Dial anew if the files have changed since."""
        if self._files is None:
            return
        current = self._files.current()
        if current == self._seen:
            return
        self._seen = current
        if self._retired is not None:
            closing = asyncio.get_running_loop().create_task(self._retired.close(None))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._retired, self._channel = self._channel, self._dial()
