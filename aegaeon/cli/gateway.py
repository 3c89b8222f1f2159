"""Which HTTP gateway a subcommand talks to."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from aegaeon.cli.target import find_target
from aegaeon.errors import ConfigError, RequestTimeoutError
from aegaeon.local.child import Child
from aegaeon.local.run_directory import RunDirectory

_START_S = 60.0
_STOP_S = 10.0
#: What a gateway would ask its own callers for.
_OWN_CALLERS = {"AEGAEON_KEYS_FILE", "AEGAEON_HTTPS_CERT", "AEGAEON_HTTPS_KEY"}
_OWN_CALLERS |= {"AEGAEON_HTTPS_CLIENT_CA"}


@contextmanager
def gateway_url(url: str | None, address: str | None, instance: str | None) -> Iterator[str]:
    """The URL given, else that of the cluster's instance, else that of a gateway of our own in
    front of the scheduler, which ends with the block."""
    if url:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--url {url!r}: expected http://host:port")
        yield url
        return
    target = find_target(address, instance)
    if target.url:
        yield target.url
        return
    with _own_gateway(target.address) as own:
        yield own


@contextmanager
def _own_gateway(scheduler: str) -> Iterator[str]:
    directory = RunDirectory()
    command = [sys.executable, "-m", "aegaeon.http", "--scheduler", scheduler, "--port", "0"]
    child = None
    try:
        # It dials the scheduler as we would; loopback asks for no keys.
        ours = {key: value for key, value in os.environ.items() if key not in _OWN_CALLERS}
        child = Child("gateway", command, directory.path / "gateway.log", environment=ours)
        deadline = time.monotonic() + _START_S
        while (address := child.poll_ready(0.1)) is None:
            if time.monotonic() > deadline:
                raise RequestTimeoutError(f"no gateway serves within {_START_S:g} s")
        yield f"http://{address}"
    finally:
        if child is not None:
            child.ask_to_stop()
            child.stop(time.monotonic() + _STOP_S)
        directory.remove()
