"""Copies of KV blocks between device and host."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from aegaeon_worker.device.interface import CopyLane, CopyMark, Device, VirtualRange
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.place import HostBlock
from aegaeon_worker.kv.sequence import copy_runs
from aegaeon_worker.kv.shape import KvShape
from aegaeon_worker.kv.transfers import TransferMeter, Transfers


class BlockCopies:
    """Queues copies, and knows whether some may be under way."""

    def __init__(
        self,
        device: Device,
        blocks: VirtualRange,
        slabs: HostSlabs,
        shape: KvShape,
        meter: TransferMeter,
    ) -> None:
        self._device = device
        self._range = blocks
        self._slabs = slabs
        self._shape = shape
        self._meter = meter
        self.under_way = False
        """Copies were queued since they were last waited for."""
        self._frees = False

    def to_device(self, device: Sequence[int], host: Sequence[HostBlock]) -> None:
        """Fill device blocks; ``fence`` before compute may read them."""
        self._copy(device, host, self._device.copy_in)

    def to_host(self, device: Sequence[int], host: Sequence[HostBlock]) -> None:
        """Fill host blocks, which hold the bytes after ``synchronize``."""
        self._copy(device, host, self._device.copy_out)

    def fence(self) -> None:
        """Start compute issued from now on after all copies so far."""
        self._device.fence_compute()

    def note_freed(self) -> None:
        """Device blocks were freed that copies under way may still read."""
        self._frees = self.under_way

    def before_writing(self) -> None:
        """Order compute behind copies that still read blocks which it is about to write."""
        if self._frees:
            self.fence()
            self._frees = False

    def mark(self) -> CopyMark:
        """Behind all copies so far."""
        return self._device.mark(CopyLane.KV)

    def synchronize(self) -> None:
        """Wait for all copies."""
        self._device.synchronize(CopyLane.KV)
        self.under_way = self._frees = False

    def _copy(
        self,
        device: Sequence[int],
        host: Sequence[HostBlock],
        copy: Callable[[VirtualRange, int, torch.Tensor], None],
    ) -> None:
        """Copy one way or the other, run by run."""
        start_ns = time.perf_counter_ns()
        self._device.fence_copies()
        self.under_way = True
        nbytes = self._shape.block_nbytes
        longest = None if self._shape.pieces == 1 else 1  # other ranks' pieces lie between
        for run in copy_runs(device, host, longest=longest):
            view = self._slabs.view(run.host_block, run.count, self._shape.host_nbytes)
            copy(self._range, run.device_block * nbytes, view[: run.count * nbytes])
        elapsed_ns = time.perf_counter_ns() - start_ns
        self._meter.add(Transfers(kv_bytes=len(device) * nbytes, kv_ns=elapsed_ns))
