"""What `aegaeon doctor` looks at. Nothing here imports torch or touches a device."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import resource
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from aegaeon.errors import ConfigError
from aegaeon.instance import INSTANCE_PREFIX
from aegaeon.local.run_directory import LOCK, locked
from aegaeon.machine import Machine, detect_machine, gpu_count

_GIB = 1024**3
#: Below these, even a small model has no room.
_LEAST_MEMORY = 2 * _GIB
_LEAST_SHM = _GIB
_LEAST_FILES = 4096
#: Oldest driver of each CUDA release that torch is built for, from NVIDIA's compatibility table.
_DRIVERS = {12: 525, 13: 580}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; ``advice`` says what to change, if anything."""

    what: str
    level: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


def examine(shm_dir: Path, host: str, port: int) -> list[Finding]:
    """Everything, in the order in which a start would meet it."""
    findings = [*_versions(), *_memory(str(shm_dir))]
    checks: list[Callable[[], Iterator[Finding]]] = [_limits, _devices]
    for check in checks:
        findings += check()
    return [*findings, _port(host, port), *_left_behind(shm_dir)]


def _versions() -> Iterator[Finding]:
    python = platform.python_version()
    yield Finding("python", "ok", f"{python}, {platform.machine()}")
    for name in ("aegaeon-grpc", "torch", "transformers", "grpcio"):
        try:
            yield Finding(name, "ok", version(name))
        except PackageNotFoundError:
            advice = "install it: pip install 'aegaeon-grpc[gateway]'"
            # A checkout on the path has no version, and needs none.
            yield Finding(name, "warn" if name == "aegaeon-grpc" else "fail", "missing", advice)
    if all(importlib.util.find_spec(name) for name in ("fastapi", "uvicorn")):
        yield Finding("gateway", "ok", "its packages are installed")
    else:
        advice = "pip install 'aegaeon-grpc[gateway]', or start with --no-gateway"
        yield Finding("gateway", "warn", "its packages are missing", advice)


def _memory(shm_dir: str) -> Iterator[Finding]:
    try:
        machine = detect_machine(shm_dir)
    except ConfigError as error:
        yield Finding("shared memory", "fail", error.message, "give another folder: --shm-dir")
        return
    yield _least(
        "memory",
        machine.memory_available,
        machine.memory_total,
        _LEAST_MEMORY,
        "end other programs, or raise the container's memory limit",
    )
    yield _least(
        f"shared memory {shm_dir}",
        machine.shm_free,
        machine.shm_total,
        _LEAST_SHM,
        "a container needs --shm-size (docker run --shm-size=16g) or --ipc=host; elsewhere "
        f"`mount -o remount,size=... {shm_dir}`, or give a larger folder: --shm-dir",
    )
    yield _processors(machine)


def _least(what: str, free: int, total: int, least: int, advice: str) -> Finding:
    found = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
    if free >= least:
        return Finding(what, "ok", found)
    return Finding(what, "fail", f"{found}; at least {least / _GIB:.0f} are needed", advice)


def _processors(machine: Machine) -> Finding:
    quota = _cpu_quota(Path("/sys/fs/cgroup/cpu.max"))
    if quota is not None and quota < machine.cpus:
        return Finding(
            "processors",
            "warn",
            f"{machine.cpus}, but the container may use {quota:g} of them",
            "workers on CPUs take a thread per processor: pin the container to that many "
            "(docker run --cpuset-cpus) instead of limiting their time",
        )
    return Finding("processors", "ok", str(machine.cpus))


def _cpu_quota(file: Path) -> float | None:
    """Processors' worth of time that this control group may use; None without a limit."""
    try:
        quota, period = file.read_text(encoding="ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # absent, or "max"
        return None


def _limits() -> Iterator[Finding]:
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < _LEAST_FILES:
        advice = f"ulimit -n {min(65536, hard)} in the shell, or LimitNOFILE= in the unit"
        found = f"{files}; every open stream of a gateway is one"
        yield Finding("open files", "warn", found, advice)
    else:
        yield Finding("open files", "ok", str(files))
    locked_bytes, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if locked_bytes == resource.RLIM_INFINITY:
        yield Finding("locked memory", "ok", "unlimited")
    elif not gpu_count():
        yield Finding("locked memory", "ok", f"{locked_bytes} bytes; only GPUs need more")
    else:
        yield Finding(
            "locked memory",
            "warn",
            f"{locked_bytes} bytes; GPUs copy from pinned host memory",
            "ulimit -l unlimited, docker run --ulimit memlock=-1, or LimitMEMLOCK=infinity",
        )


def _devices() -> Iterator[Finding]:
    count = gpu_count()
    if not count:
        present = sum(1 for _ in Path("/proc/driver/nvidia/gpus").glob("*"))
        if present and os.environ.get("CUDA_VISIBLE_DEVICES") is None:
            advice = "hand them to the container: docker run --gpus all"
            yield Finding("GPUs", "warn", f"{present} in this machine, none reachable", advice)
        else:
            yield Finding("GPUs", "ok", "none; one worker would run on the CPU")
        return
    yield Finding("GPUs", "ok", f"{count}; one worker on each")
    closed = [
        str(path)
        for path in sorted(Path("/dev").glob("nvidia[0-9]*"))
        if not os.access(path, os.R_OK | os.W_OK)
    ]
    if closed:
        advice = "let this user read and write them (usually: group video or render)"
        yield Finding("GPU files", "fail", f"{', '.join(closed)}: no permission", advice)
    yield _driver(Path("/proc/driver/nvidia/version"), _torch_version())
    if importlib.util.find_spec("cuda") is None:
        advice = "pip install 'aegaeon-grpc[gpu]'"
        yield Finding("GPU packages", "fail", "cuda-bindings is missing", advice)


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def _driver(file: Path, torch_version: str) -> Finding:
    """Whether torch's build fits the driver; wheels without a suffix are built for CUDA 13."""
    try:
        match = re.search(r"(\d+)\.(\d[\d.]*)", file.read_text(encoding="utf-8"))
    except OSError:
        match = None
    if match is None:
        return Finding("driver", "fail", "not loaded", "install NVIDIA's driver, or load it")
    driver = match.group(0)
    if torch_version.endswith("+cpu"):
        advice = "install torch's CUDA build, or hide the GPUs: CUDA_VISIBLE_DEVICES="
        return Finding("driver", "fail", f"{driver}, but torch is built for CPUs", advice)
    built = re.search(r"\+cu(\d\d)", torch_version)
    cuda = int(built.group(1)) if built else 13
    least = _DRIVERS.get(cuda, 0)
    if int(match.group(1)) < least:
        found = f"{driver}, but torch's CUDA {cuda} needs {least} or newer"
        return Finding("driver", "fail", found, "update it, or install torch for an older CUDA")
    return Finding("driver", "ok", driver)


def _port(host: str, port: int) -> Finding:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    what = f"port {host}:{port}"
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        advice = "fine if that is this instance's gateway; else choose another --port"
        return Finding(what, "warn", error.strerror or str(error), advice)
    return Finding(what, "ok", "free")


def _left_behind(shm_dir: Path) -> Iterator[Finding]:
    """Shared memory of services that were killed."""
    dead, size = 0, 0
    for folder in sorted(shm_dir.glob(f"{INSTANCE_PREFIX}*")):
        try:
            with locked(folder / LOCK) as free:
                if free:
                    dead += 1
                    files = (path for path in folder.rglob("*") if path.is_file())
                    size += sum(path.stat().st_blocks * 512 for path in files)
        except OSError:  # another user's, or on its way out
            continue
    if dead:
        found = f"{dead} folders of services that do not run, {size / _GIB:.2f} GiB"
        advice = "the next worker that starts there reclaims them, but for weights that were kept"
        yield Finding("left behind", "ok", found, advice)
