"""A channel whose calls carry a bearer token.

Interceptors could do it as well, but put a queue into every stream; call credentials of gRPC work
on encrypted connections only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import grpc

from aegaeon.security.token import Token


class AuthorizedChannel(grpc.aio.Channel):
    """Another channel's calls, with the token as it is when each call begins."""

    def __init__(self, channel: grpc.aio.Channel, token: Token) -> None:
        self._channel: Any = channel  # its published stubs lack what newer generators pass
        self._token = token

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """See `grpc.aio.Channel`, as with all below."""
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
        return self._with_token(self._channel.unary_unary(*arguments, **options))

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:  # noqa: D102
        return self._with_token(self._channel.unary_stream(*arguments, **options))

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:  # noqa: D102
        return self._with_token(self._channel.stream_unary(*arguments, **options))

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:  # noqa: D102
        return self._with_token(self._channel.stream_stream(*arguments, **options))

    def _with_token(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def begin(*arguments: Any, metadata: Any = (), **options: Any) -> Any:
            own = self._token.metadata()
            return call(*arguments, metadata=(*(metadata or ()), *own), **options)

        return begin
