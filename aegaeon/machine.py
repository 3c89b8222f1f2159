"""This machine's memory and processors, container limits included."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from aegaeon.errors import ConfigError

DEFAULT_SHM_DIR = "/dev/shm"
# cgroup v1 writes "no limit" as a number near 2^63.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class Machine:
    """What may be used at this moment, in bytes."""

    memory_total: int
    #: Without swapping, and within the container's limit.
    memory_available: int
    shm_dir: str
    shm_total: int
    shm_free: int
    #: Processors that this process may run on.
    cpus: int


def detect_machine(shm_dir: str = DEFAULT_SHM_DIR) -> Machine:
    """Look at the machine. Raises ConfigError when the shared-memory folder cannot be used."""
    total, available = _memory()
    if not os.access(shm_dir, os.W_OK | os.X_OK):
        raise ConfigError(
            f"shm_dir {shm_dir} is not a folder that this user may write to; give another one",
            metadata={"field": "shm_dir", "value": shm_dir},
        )
    shm = os.statvfs(shm_dir)
    return Machine(
        memory_total=total,
        memory_available=available,
        shm_dir=shm_dir,
        shm_total=shm.f_blocks * shm.f_frsize,
        shm_free=shm.f_bavail * shm.f_frsize,
        cpus=len(os.sched_getaffinity(0)),
    )


def gpu_count(devices: Path = Path("/dev")) -> int:
    """NVIDIA GPUs that a worker may take: device files, within CUDA_VISIBLE_DEVICES.

    Asking the driver would take a second and memory on each of them.
    """
    count = sum(path.name.removeprefix("nvidia").isdecimal() for path in devices.glob("nvidia*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    # The driver takes the entries up to the first that is none.
    names = [name.strip() for name in visible.split(",")]
    valid = next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))
    return min(count, valid)


def available_memory() -> int:
    """Bytes that may be used now without swapping, and within the container's limit."""
    return _memory()[1]


def _memory() -> tuple[int, int]:
    """(total, available)."""
    total, available = _meminfo(Path("/proc/meminfo").read_text(encoding="ascii"))
    limit = _cgroup_limit(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))
    return (total, available) if limit is None else (min(total, limit[0]), min(available, limit[1]))


def _meminfo(text: str) -> tuple[int, int]:
    values = dict(line.split(":", 1) for line in text.splitlines())
    total, available = (int(values[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    return total, available


def _cgroup_limit(root: Path, membership: Path) -> tuple[int, int] | None:
    """(limit, what is left of it) of the tightest enclosing group; None without a limit."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found += _limits(root, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            found += _limits(root / "memory", path, *names)
    if not found:
        return None
    return min(limit for limit, _ in found), min(left for _, left in found)


def _limits(root: Path, path: str, limit_file: str, usage_file: str) -> list[tuple[int, int]]:
    """Limits of a group and of all above it; a container may see only the last."""
    found = []
    group = root / path.lstrip("/")
    for folder in (group, *group.parents):
        limit, usage = _number(folder / limit_file), _number(folder / usage_file)
        if limit is not None and usage is not None and limit < _NO_LIMIT:
            # Pages of files that were merely read are given back under pressure.
            reclaimable = _statistic(folder / "memory.stat", "inactive_file")
            found.append((limit, max(0, limit - usage + reclaimable)))
        if folder == root:
            break
    return found


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # absent, or "max"
        return None


def _statistic(path: Path, name: str) -> int:
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            key, value = line.split()
            if key == name:
                return int(value)
    except OSError:
        pass
    return 0
