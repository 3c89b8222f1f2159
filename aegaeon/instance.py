"""Where the shared-memory files of a service instance lie."""

from __future__ import annotations

from pathlib import Path

#: Before an instance's name, in the name of its folder.
INSTANCE_PREFIX = "aegaeon-"


def instance_folder(shm_dir: Path, instance: str) -> Path:
    """The folder that the workers of an instance share."""
    return shm_dir / f"{INSTANCE_PREFIX}{instance}"
