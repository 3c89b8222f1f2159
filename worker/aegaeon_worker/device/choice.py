"""Which device a worker runs on, and how much of it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from aegaeon_worker.device import cpu, cuda
from aegaeon_worker.device.cuda_driver import BoundDriver
from aegaeon_worker.device.errors import DeviceMemoryError, DeviceUnavailable
from aegaeon_worker.device.gpu_lock import GpuLock
from aegaeon_worker.device.interface import Device
from aegaeon_worker.device.sharing import SharingDevice


@dataclass(frozen=True)
class DeviceRequest:
    """What the worker was told; see ``WorkerConfig``."""

    device: str
    """``auto``, ``cpu`` or ``cuda:<index>``."""
    worker_index: int
    cpu_nbytes: int
    memory_utilization: float
    chunk_nbytes: int
    lock_dir: Path
    lends: bool = False
    """Other workers of the machine are to read what is on the device."""


def open_device(request: DeviceRequest, stack: ExitStack) -> SharingDevice:
    """Take the device; ``stack`` gives it back.

    ``DeviceUnavailable`` if it is not there or belongs to another process, ``DeviceMemoryError``
    if it has too little memory.
    """
    name = _resolve(request.device, request.worker_index)
    if name == "cpu":
        chunk_nbytes = request.chunk_nbytes or cpu.DEFAULT_CHUNK_NBYTES
        device: SharingDevice = cpu.CpuDevice(
            request.cpu_nbytes, chunk_nbytes, shared=request.lends
        )
    else:
        device = _open_cuda(int(name.removeprefix("cuda:")), request, stack)
    stack.callback(device.close)
    return device


def default_dtype(device: Device) -> torch.dtype:
    """What weights are stored in unless the model says otherwise."""
    return torch.float32 if device.torch_device.type == "cpu" else torch.bfloat16


def _resolve(device: str, worker_index: int) -> str:
    if device != "auto":
        return device
    if not torch.cuda.is_available():
        return "cpu"
    count = torch.cuda.device_count()
    if worker_index >= count:
        raise DeviceUnavailable(
            f"worker {worker_index} would run on cuda:{worker_index}, but this machine has {count} "
            "CUDA devices; start fewer workers, or give this one a device with --device"
        )
    return f"cuda:{worker_index}"


def _open_cuda(index: int, request: DeviceRequest, stack: ExitStack) -> cuda.CudaDevice:
    driver = BoundDriver(index)
    stack.callback(driver.close)
    lock = GpuLock(request.lock_dir, driver.uuid, driver.name)
    stack.callback(lock.release)
    chunk_nbytes = request.chunk_nbytes or cuda.DEFAULT_CHUNK_NBYTES
    free = driver.free_nbytes()
    num_chunks = int(free * request.memory_utilization) // chunk_nbytes
    if num_chunks < 1:
        raise DeviceMemoryError(
            f"{driver.name}: {request.memory_utilization:.0%} of {free} free bytes is less than "
            f"one chunk of {chunk_nbytes} bytes; free the device, or raise the utilization",
            metadata={"needed_bytes": chunk_nbytes, "available_bytes": free},
        )
    return cuda.CudaDevice(driver, num_chunks, chunk_nbytes)
