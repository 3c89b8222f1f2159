"""How much memory this process may still use, and tensors over raw addresses."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def available_nbytes() -> int:
    """Bytes that can be used without swapping: the machine's, or the control group's if fewer."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return min([int(line.split()[1]) * 1024, *_cgroup_headrooms()])
    raise OSError("/proc/meminfo has no MemAvailable line; a Linux kernel from 3.14 on is needed")


def _cgroup_headrooms() -> list[int]:
    """Bytes left under each memory limit from this process's control group (v2) upwards."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    paths = [line[3:] for line in lines if line.startswith("0::")]
    headrooms = []
    for path in paths:
        group = _CGROUP_ROOT / path.lstrip("/")
        while group.is_relative_to(_CGROUP_ROOT):
            headrooms.extend(_headroom(group))
            group = group.parent
    return headrooms


def _headroom(group: Path) -> list[int]:
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except OSError:
        return []
    return [] if limit == "max" else [max(0, int(limit) - used)]


def dense_nbytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    """Bytes of a dense tensor."""
    count = dtype.itemsize
    for size in shape:
        count *= size
    return count


def tensor_at(address: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A dense CPU tensor over memory that the caller keeps mapped while it is touched."""
    nbytes = dense_nbytes(dtype, shape)
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    buffer = (ctypes.c_char * nbytes).from_address(address)
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


def byte_view(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor as uint8 [nbytes], without a copy."""
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of strides {tensor.stride()} is not contiguous")
    return tensor.detach().reshape(-1).view(torch.uint8)
