"""Which part of an engine a worker is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ranks:
    """One rank among ``size``. Ranks follow the workers' indexes, so they survive restarts."""

    rank: int = 0
    size: int = 1

    @classmethod
    def of_worker(cls, worker_index: int, size: int) -> Ranks:
        """Workers 0 to ``size - 1`` are the ranks of the node's first engine, and so on."""
        return cls(worker_index % size, size)

    @property
    def others(self) -> range:
        """Every rank but 0, which leads."""
        return range(1, self.size)

    def piece(self, pieces: int) -> int:
        """Which of ``pieces`` this rank has, where each is kept by ``size / pieces`` ranks."""
        return self.rank * pieces // self.size


ALONE = Ranks()
"""A worker that is an engine by itself."""
