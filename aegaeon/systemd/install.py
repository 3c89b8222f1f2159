"""Which files make services of the daemons, and what is in them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from aegaeon.errors import ConfigError

#: Packages and the units in them. A package's own unit lies beside its daemon.
_UNITS = (
    ("aegaeon.systemd", "aegaeon.target"),
    ("aegaeon_scheduler", "aegaeon-scheduler.service"),
    ("aegaeon.http", "aegaeon-gateway.service"),
    ("aegaeon_worker", "aegaeon-worker@.service"),
)
#: What only the system's manager can do: other users, and namespaces, which unprivileged processes
#: may have or not.
_SYSTEM_ONLY = (
    "User",
    "Group",
    "OOMScoreAdjust",
    "CapabilityBoundingSet",
    "Device",
    "Private",
    "Protect",
    "RemoveIPC",
    "RestrictSUIDSGID",
    "After=network-online",
    "Wants=network-online",
)
_ENV = "/usr/bin/env "


@dataclass(frozen=True)
class InstalledFile:
    """A file to be written. One that is the operator's is left alone when it is there."""

    path: Path
    text: str
    operators: bool = False


def system_files(root: Path, programs: Path) -> list[InstalledFile]:
    """Files of services that the system runs, below ``root``, with daemons from ``programs``.

    Raises ConfigError when the services could not reach the programs.
    """
    if _is_hidden(programs):
        raise ConfigError(
            f"the daemons are in {programs}, which the services' sandbox hides (ProtectHome); "
            "install the package elsewhere, for example in a virtual environment /opt/aegaeon, or "
            "use --user"
        )
    # Of a virtual environment it is a link to whatever Python that was made with.
    python = programs / "python"
    if _is_hidden(python):
        raise ConfigError(
            f"the Python of the daemons, {python}, is {python.resolve()}, which the services' "
            "sandbox hides (ProtectHome); make the virtual environment with a Python of the "
            "system's, such as /usr/bin/python3, or use --user"
        )
    units = root / "etc/systemd/system"
    return [
        *(InstalledFile(units / name, text) for name, text in _units(programs)),
        InstalledFile(root / "etc/sysusers.d/aegaeon.conf", _text("aegaeon.systemd", "sysusers")),
        InstalledFile(root / "etc/aegaeon/aegaeon.env", _text("aegaeon.systemd", "env"), True),
    ]


def user_files(config_home: Path, programs: Path) -> list[InstalledFile]:
    """Files of services that one user's manager runs."""
    units = config_home / "systemd/user"
    return [
        *(InstalledFile(units / name, _for_user(text)) for name, text in _units(programs)),
        InstalledFile(
            config_home / "aegaeon/aegaeon.env", _text("aegaeon.systemd", "env"), operators=True
        ),
    ]


def _is_hidden(path: Path) -> bool:
    hidden = [Path("/home"), Path("/root"), Path("/run/user")]
    return any(path.resolve().is_relative_to(folder) for folder in hidden)


def own_programs() -> Path:
    """Where this installation's commands are."""
    return Path(sys.executable).parent


def write(file: InstalledFile) -> bool:
    """Write a file; whether that was done. Raises ConfigError."""
    if file.operators and file.path.exists():
        return False
    try:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.path.write_text(file.text)
        file.path.chmod(0o640 if file.operators else 0o644)
    except OSError as error:
        raise ConfigError(
            f"{file.path}: cannot be written: {error.strerror}; run this as root, or use --user"
        ) from error
    return True


def _units(programs: Path) -> Iterator[tuple[str, str]]:
    for package, name in _UNITS:
        text = files(package).joinpath(name).read_text()
        yield name, text.replace(_ENV, f"{programs}/")


def _text(package: str, kind: str) -> str:
    return files(package).joinpath(f"aegaeon.{kind}").read_text()


def _for_user(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.startswith(_SYSTEM_ONLY)]
    text = "\n".join(lines).replace("multi-user.target", "default.target") + "\n"
    return text.replace("network-online.target ", "")
