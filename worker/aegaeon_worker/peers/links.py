"""A worker's part in hand-offs from device to device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from aegaeon_worker.device.sharing import SharingDevice
from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.peers.borrowing import Borrowing
from aegaeon_worker.peers.lender import LenderGone, PullAnswered
from aegaeon_worker.peers.lending import Lending, SaveOffer

#: A worker of another node waits no longer than so for what this one has to copy first.
_SAVE_S = 4.0


@dataclass(frozen=True)
class PeerLinks:
    """What other workers of the node may read here, and what this one may read there."""

    obstacle: str = ""
    """Why nobody reads here."""
    lending: Lending | None = None
    borrowing: Borrowing | None = None
    device: str = ""
    """Names the memory that others may read; empty if none may."""
    readable: frozenset[str] = frozenset()
    """Names of the memories that this worker reads."""

    @classmethod
    def open(
        cls,
        root: Path,
        worker_index: int,
        device: SharingDevice,
        post: Callable[[PullAnswered | LenderGone | SaveOffer], None],
        *,
        lends: bool,
    ) -> Self:
        """``root`` is the node's folder of KV; ``post`` reaches the engine from any thread."""
        sharing = device.sharing
        if not lends:
            sharing.prepare()
        borrowing = Borrowing(root, sharing, post)
        if not lends or sharing.obstacle:
            obstacle = sharing.obstacle or "only prefill workers share their memory"
            return cls(obstacle, None, borrowing, "", sharing.readable)
        lending = Lending(root, worker_index, sharing, device.pool, post)
        return cls("", lending, borrowing, sharing.name, sharing.readable)

    async def in_slabs(self, offer: str) -> KvPlace | None:
        """Bring an own offer to the slabs, for a worker of another node; none if it is gone."""
        if self.lending is None:
            return None
        moved = asyncio.get_running_loop().create_future()
        self.lending.save(offer, partial(_resolve, moved))
        try:
            async with asyncio.timeout(_SAVE_S):
                await moved
        except TimeoutError:
            return None
        found = self.lending.read(offer)
        return None if found is None else found.place

    def close(self) -> None:
        """Lend and borrow nothing any more; the engine has ended."""
        if self.borrowing is not None:
            self.borrowing.close()
        if self.lending is not None:
            self.lending.close()


#: Of an engine that has nothing to do with others.
ALONE = PeerLinks()


def _resolve(moved: asyncio.Future[None]) -> None:
    """From any thread."""

    def resolve() -> None:
        if not moved.done():
            moved.set_result(None)

    moved.get_loop().call_soon_threadsafe(resolve)
