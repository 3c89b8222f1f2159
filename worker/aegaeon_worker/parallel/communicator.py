"""The one communicator of an engine's ranks: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

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

    def connect(self, meeting: Path) -> None:
        """Join the other ranks at ``meeting``, a file that does not exist before; blocks until all
        have come. ``GroupBroken`` if one does not come in time."""
        assert self._group is None
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

    def disconnect(self) -> None:
        """Give the connections up; a collective of another rank fails then. Idempotent."""
        group, self._group = self._group, None
        if group is not None:
            group.abort()

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """See ``Collectives``."""
        if part.numel():
            self._run(lambda group: group.allreduce([part]))
        return part

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
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        group = dist.ProcessGroupNCCL(store, self.ranks.rank, self.ranks.size, options)
        group.eager_connect_single_device(self._device)
        return group
