"""Channels and servers with the project's limits and keepalive, the same on both ends."""

from __future__ import annotations

from typing import Any

import grpc

from aegaeon.rpc.authorized import AuthorizedChannel
from aegaeon.rpc.key_check import KeyCheck
from aegaeon.rpc.well_formed import WellFormed
from aegaeon.security.guard import Guard
from aegaeon.security.settings import PLAIN, SecuritySettings
from aegaeon.security.tls import client_files
from aegaeon.security.token import Token

#: Largest message either end accepts, in bytes: a prompt of about 16 million tokens.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

#: Calls that may have arrived at a server without having been taken up; above all requests that a
#: scheduler admits by default.
MAX_PENDING_CALLS = 65_536

_LIMITS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]
# A dead TCP peer is noticed in 15 s even when no message is due; pings on idle connections are
# allowed on both ends, or the server would answer them with GOAWAY (too_many_pings).
_KEEPALIVE: list[tuple[str, int]] = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


def server_options() -> list[tuple[str, int]]:
    """Options of every server."""
    return [
        *_LIMITS,
        *_KEEPALIVE,
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        # Beyond 1,000 calls that wait to be taken up, gRPC would cancel some at random and without
        # a reason. The scheduler's own limits give one.
        ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
        # Two daemons must never share a port by accident: the second bind fails instead.
        ("grpc.so_reuseport", 0),
    ]


def channel_options() -> list[tuple[str, int | str]]:
    """Options of every channel."""
    return [
        *_LIMITS,
        *_KEEPALIVE,
        # A restarted daemon is found again within half a second, not after the default of minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 500),
        # Channels in one process must not share a connection: each has its own flow control.
        ("grpc.use_local_subchannel_pool", 1),
        # Proxies from the environment never apply between the project's own daemons.
        ("grpc.enable_http_proxy", 0),
    ]


def make_server(settings: SecuritySettings = PLAIN) -> grpc.aio.Server:
    """A server that asks for keys if there is a file of them. Raises ConfigError."""
    checks: list[Any] = [WellFormed()]
    if settings.keys_file is not None:
        checks.insert(0, KeyCheck(Guard(settings.keys_file)))
    return grpc.aio.server(options=server_options(), interceptors=checks)


def open_channel(address: str, settings: SecuritySettings = PLAIN) -> grpc.aio.Channel:
    """A channel to ``host:port`` or ``unix:path``; connects lazily. Needs a running loop.

    TCP is encrypted if there are authorities to check the other end by; sockets of this machine are
    not. Raises ConfigError.
    """
    files = None if address.startswith("unix:") else client_files(settings)
    token = Token(settings.token_file)
    name = settings.tls_server_name
    options = channel_options()
    if name:
        options.append(("grpc.ssl_target_name_override", name))

    def dial() -> grpc.aio.Channel:
        if files is None:
            return grpc.aio.insecure_channel(address, options=channel_options())
        return grpc.aio.secure_channel(address, files.credentials(), options=options)

    return dial() if files is None and not token.given else AuthorizedChannel(dial, token, files)
