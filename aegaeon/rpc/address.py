"""Addresses: ``host:port`` or ``unix:path``."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from aegaeon.errors import ConfigError
from aegaeon.security.settings import PLAIN, SecuritySettings
from aegaeon.security.tls import asks_certificates, server_credentials

#: Longest socket path that the kernel takes, in bytes.
_MAX_UNIX_PATH = 107


def bind(
    server: grpc.aio.Server,
    listen: str,
    *,
    insecure_bind: bool,
    settings: SecuritySettings = PLAIN,
) -> str:
    """Bind ``server`` to ``listen`` and return the address that clients dial.

    Port 0 picks a free port. A stale socket file of a dead process is replaced. ``ConfigError`` for
    an address in use, a path too long, or a TCP address beyond loopback that is not both encrypted
    and closed to strangers, unless ``insecure_bind`` allows it.
    """
    if listen.startswith("unix:"):
        clear_stale_socket(Path(listen.removeprefix("unix:")))
        credentials = None
    else:
        credentials = server_credentials(settings)
        closed = asks_certificates(settings) or settings.keys_file is not None
        check_reach(listen, insecure_bind, encrypted=credentials is not None, closed=closed)
    try:
        with private_files():
            if credentials is None:
                port = server.add_insecure_port(listen)
            else:
                port = server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        raise ConfigError(f"cannot listen on {listen}: {error}") from error
    if listen.startswith("unix:"):
        return listen
    return f"{listen.rpartition(':')[0]}:{port}"


@contextmanager
def private_files() -> Iterator[None]:
    """Files made meanwhile are this user's alone: a socket admits whoever may write to it, and
    nothing here asks who that is."""
    mask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(mask)


def check_reach(listen: str, insecure_bind: bool, *, encrypted: bool, closed: bool) -> None:
    """Raise ConfigError for a TCP address beyond loopback that is not safe to be there.

    ``encrypted``: it serves TLS; ``closed``: it asks callers for certificates or keys.
    """
    if insecure_bind or (encrypted and closed) or _is_loopback(listen):
        return
    missing = [
        text
        for text, there in (
            ("the connection is not encrypted (give a certificate and its key)", encrypted),
            ("nobody is asked who they are (give --keys-file or authorities)", closed),
        )
        if not there
    ]
    raise ConfigError(
        f"{listen} is reachable from other machines, and {' and '.join(missing)}: see "
        f"docs/security.md; or listen on 127.0.0.1 or a unix socket, or allow it with "
        f"--insecure-bind"
    )


def _is_loopback(listen: str) -> bool:
    host = listen.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def clear_stale_socket(path: Path) -> None:
    """Remove what a dead process left there. Raises ConfigError when it is too long or in use."""
    if len(str(path).encode()) > _MAX_UNIX_PATH:
        raise ConfigError(f"socket path {path} is longer than {_MAX_UNIX_PATH} bytes; shorten it")
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        else:
            raise ConfigError(f"socket {path} is in use by another process; choose another path")
