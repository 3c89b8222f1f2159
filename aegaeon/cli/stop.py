"""``aegaeon stop``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from typing import TYPE_CHECKING

from aegaeon.cli import cluster_options as options
from aegaeon.cli.drain import drain_target
from aegaeon.cli.target import find_target, instance_name
from aegaeon.errors import NotRunningError, RequestTimeoutError

if TYPE_CHECKING:
    from aegaeon.instances.records import InstanceRecord

_POLL_S = 0.05
#: Daemons whose supervisor is gone end on their own within this time, in seconds.
_FOLLOW_S = 15.0


def stop(
    instance: options.Instance = None,
    drain: options.Drain = False,
    drain_timeout_s: options.DrainTimeout = 600.0,
    timeout_s: options.StopTimeout = 60.0,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Stop an instance that `aegaeon start` runs on this machine; returns when it is gone.

    Requests under way are cancelled, unless --drain lets them end.
    """
    from aegaeon.instances.records import clear_dead, find_instance

    name = instance_name(instance)
    record = find_instance(name)
    if record is None:
        clear_dead(name)
        raise NotRunningError(f"no instance {name!r} runs here")
    if drain:
        target = find_target(None, name)
        asyncio.run(drain_target(target, timeout_s=drain_timeout_s, quiet=as_json))
    begin = time.monotonic()
    _signal(record, signal.SIGTERM)
    killed = False
    if not _gone(record, timeout_s):
        if not force:
            raise RequestTimeoutError(
                f"instance {name!r}, process {record.pid}, has not ended within {timeout_s:g} s; "
                "its logs are in " + (record.log_dir or "no folder yet") + "; --force kills it"
            )
        _signal(record, signal.SIGKILL)
        killed = True
        _gone(record, _FOLLOW_S)
        clear_dead(name)
    seconds = time.monotonic() - begin
    if as_json:
        print(
            json.dumps({"instance": name, "pid": record.pid, "killed": killed, "seconds": seconds})
        )
    else:
        print(f"Instance {name} {'was killed' if killed else 'has stopped'}, {seconds:.1f} s.")


def _signal(record: InstanceRecord, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(record.pid, number)


def _gone(record: InstanceRecord, timeout_s: float) -> bool:
    """Whether the supervisor ends in time, and with it its name and every daemon."""
    from aegaeon.instances.records import find_instance

    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = find_instance(record.instance)
        if found is None or found.pid != record.pid:
            return True
        time.sleep(_POLL_S)
    return False
