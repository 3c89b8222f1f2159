"""The instances that run on this machine, by name: who runs each, and where it is reached.

An instance's folder holds a lock, which its supervisor keeps for as long as it lives and the kernel
drops however that ends, and a record for those who look for it. Sockets and logs are elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from aegaeon.errors import ConfigError
from aegaeon.local.run_directory import LOCK, PREFIX, locked, runtime_roots

DEFAULT_INSTANCE = "default"
_RECORD = "instance.json"
_CLAIM_S = 1.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class InstanceRecord:
    """A running instance. ``address`` and ``url`` are empty until scheduler and gateway serve."""

    instance: str
    #: Of its supervisor.
    pid: int
    started_unix_s: float
    #: All its models have been ready; `aegaeon start` has returned, or waits for a signal.
    ready: bool = False
    #: The scheduler's, ``host:port`` or ``unix:path``.
    address: str = ""
    #: The gateway's.
    url: str = ""
    #: Where its daemons write.
    log_dir: str = ""
    #: Where they tell Prometheus: the gateway, the scheduler, the workers, as far as they do.
    metrics: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Of what `asdict` made, after JSON. Raises TypeError, KeyError."""
        return cls(**{**fields, "metrics": tuple(fields["metrics"])})


class InstanceFolder:
    """This process's claim to an instance's name, until ``remove``.

    Raises ConfigError for a wrong name, and when the instance runs already.
    """

    def __init__(self, instance: str) -> None:
        if (running := find_instance(instance)) is not None:
            raise ConfigError(
                f"instance {instance!r} runs already, as process {running.pid}; stop it with "
                "`aegaeon stop`, or give this one another name with --instance"
            )
        self.path = runtime_roots()[0].absolute() / _folder_name(instance)
        self._lock = self._claim(instance)

    def write(self, record: InstanceRecord) -> None:
        """Replace the record; a reader sees the old one or the new one, whole."""
        new = self.path / f"{_RECORD}.new"
        new.write_text(json.dumps(asdict(record), indent=2), encoding="utf-8")
        new.replace(self.path / _RECORD)

    def remove(self) -> None:
        """Give the name up. Idempotent."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def _claim(self, instance: str) -> int:
        give_up = time.monotonic() + _CLAIM_S
        while (lock := self._try_to_claim()) is None:
            # Whoever looks at a free lock holds it for a moment; whoever clears the folder, too.
            if time.monotonic() > give_up:
                raise ConfigError(f"another process starts instance {instance!r} right now")
            time.sleep(0.01)
        return lock

    def _try_to_claim(self) -> int | None:
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            if not _is_ours(self.path):
                raise ConfigError(f"{self.path} belongs to another user; give another --instance")
            lock = os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be made: {error.strerror}") from error
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), (self.path / LOCK).stat()):
                return lock
        os.close(lock)
        return None


def find_instance(instance: str) -> InstanceRecord | None:
    """This user's running instance of that name; None without one. Raises ConfigError for a wrong
    name."""
    name = _folder_name(instance)
    for root in runtime_roots():
        folder = root / name
        # Somebody else's folder of this name could lead anywhere.
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            if not _is_ours(folder):
                continue
            with locked(folder / LOCK) as free:
                if not free:
                    text = (folder / _RECORD).read_text(encoding="utf-8")
                    return InstanceRecord.from_json(json.loads(text))
    return None


def clear_dead(instance: str) -> None:
    """Remove the record of an instance whose supervisor was killed; a running one stays."""
    for root in runtime_roots():
        folder = root / _folder_name(instance)
        with contextlib.suppress(OSError):
            if _is_ours(folder):
                with locked(folder / LOCK) as free:
                    if free:
                        shutil.rmtree(folder, ignore_errors=True)


def _folder_name(instance: str) -> str:
    if not _NAME.fullmatch(instance):
        raise ConfigError(
            f"instance name {instance!r}: use 1 to 64 letters, digits, dots, dashes, underscores, "
            "beginning with a letter or a digit"
        )
    # The dot keeps it apart from the folders of clients, the user from those of other users.
    return f"{PREFIX}{os.geteuid()}.{instance}"


def _is_ours(folder: Path) -> bool:
    return not folder.is_symlink() and folder.stat().st_uid == os.geteuid()
