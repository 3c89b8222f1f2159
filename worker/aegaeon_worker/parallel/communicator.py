"""The one communicator of an engine's ranks: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from aegaeon_worker.parallel.errors import GroupBroken
from aegaeon_worker.parallel.ranks import Ranks


class Communicator:
    """See ``Collectives``. It lives as long as the process; models keep it across groups.

    A group's connections are made once, by ``connect``, when all its ranks are there, and given up
    by ``disconnect`` when one is lost: never for a switch of models.
    """

    def __init__(self, ranks: Ranks, device: torch.device, timeout_s: float) -> None:
        """A rank that is not heard in a collective for ``timeout_s`` breaks the group."""
        self.ranks = ranks
        self._device = device
        self._timeout = timedelta(seconds=timeout_s)
        self._group: Any = None
        self._sums: Any = None

    def connect(self, meeting: Path) -> None:
        """Join the other ranks at ``meeting``, a file that does not exist before; blocks until all
        have come. ``GroupBroken`` if one does not come in time."""
        assert self._group is None
        if self._device.type == "cuda":
            # Of this thread, which is the one that computes.
            torch.cuda.set_device(self._device)
        try:
            store = FileStore(str(meeting), self.ranks.size)
            store.set_timeout(self._timeout)
            self._group = self._backend(store)
            # Connections are made at the first use, which must not be a step's.
            self.sum(torch.zeros(1, device=self._device))
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except RuntimeError as error:
            self.disconnect()
            raise GroupBroken(f"the ranks did not all connect: {error}") from error

    @property
    def recorded(self) -> bool:
        """Collectives may be part of CUDA graphs, which must be gone before ``disconnect``: NCCL
        waits for them, without end."""
        return self._device.type == "cuda"

    def disconnect(self) -> None:
        """Give the connections up; a collective of another rank fails then. Idempotent."""
        group, self._group, self._sums = self._group, None, None
        if group is None:
            return
        if self.recorded:
            gc.collect()  # graphs that only cycles hold
            group._get_backend(self._device).abort()
            dist.destroy_process_group()
        else:
            group.abort()

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """See ``Collectives``."""
        if part.numel():
            self._run(lambda group: group.allreduce([part]))
        return part

    def sum_parts(
        self, part: torch.Tensor, dtype: torch.dtype, *, first: bool = False
    ) -> torch.Tensor:
        """See ``Collectives``."""
        if self._sums is None or not part.numel():
            return self.sum(part)
        whole: torch.Tensor = self._sums.sum(part, dtype, first=first)
        return whole

    def join(self, part: torch.Tensor) -> torch.Tensor:
        """See ``Collectives``."""
        if not part.numel():
            return part.new_empty(*part.shape[:-1], part.shape[-1] * self.ranks.size)
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.ranks.size)]
        self._run(lambda group: group.allgather([parts], [part]))
        return torch.cat(parts, -1)

    def join_at_first(self, part: torch.Tensor) -> torch.Tensor:
        """See ``Collectives``."""
        if not part.numel():
            return part.new_empty(*part.shape[:-1], part.shape[-1] * self.ranks.size)
        part = part.contiguous()
        options = dist.GatherOptions()
        options.rootRank = 0
        parts = [torch.empty_like(part) for _ in range(self.ranks.size)]
        targets = [] if self.ranks.rank else [parts]
        self._run(lambda group: group.gather(targets, [part], options))
        return part if self.ranks.rank else torch.cat(parts, -1)

    def send_from_first(self, tensor: torch.Tensor) -> None:
        """Make ``tensor`` that of rank 0 on every rank."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._run(lambda group: group.broadcast([tensor], options))

    def _run(self, collective: Callable[[Any], Any]) -> None:
        if self._group is None:
            raise GroupBroken("this rank is not connected to the others of its engine")
        try:
            collective(self._group).wait()
        except RuntimeError as error:
            raise GroupBroken(f"a collective of {self.ranks.size} ranks failed: {error}") from error

    def _backend(self, store: Any) -> Any:
        if self._device.type == "cuda":
            return self._nccl(store)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = self._timeout
        # The ranks of an engine are on one machine; its host name need not resolve to anything.
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._threads = 1
        return dist.ProcessGroupGloo(store, self.ranks.rank, self.ranks.size, options)

    def _nccl(self, store: Any) -> Any:
        # Symmetric memory knows only groups that are registered with torch, so it is the process's.
        from aegaeon_worker.parallel.device_sums import DeviceSums

        dist.init_process_group(
            "nccl",
            store=store,
            rank=self.ranks.rank,
            world_size=self.ranks.size,
            timeout=self._timeout,
            device_id=self._device,
        )
        group = dist.group.WORLD
        assert group is not None
        self._sums = DeviceSums(group, self._device)
        return group
