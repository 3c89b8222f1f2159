"""What this worker reads from the devices of others of its node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from aegaeon_worker.device.sharing import DeviceSharing
from aegaeon_worker.peers.lender import Lender, LenderGone, PullAnswered
from aegaeon_worker.peers.offer import Offer, offer_socket, read_offer, valid_name


class Borrowing:
    """Finds offers and who made them; on the engine's thread."""

    def __init__(
        self,
        root: Path,
        sharing: DeviceSharing,
        post: Callable[[PullAnswered | LenderGone], None],
    ) -> None:
        """``root`` is the node's folder of KV; ``post`` reaches the engine."""
        self._root = root
        self._post = post
        self._lenders: dict[Path, Lender] = {}
        self.sharing = sharing

    def read(self, name: str) -> Offer | None:
        """What is written down of an offer; none if it is gone."""
        return read_offer(self._root, name) if valid_name(name) else None

    def lender(self, name: str, offer: Offer) -> Lender:
        """Who made an offer; ``OSError`` if that process has ended."""
        path = offer_socket(self._root, name)
        lender = self._lenders.get(path)
        if lender is None:
            reserve = partial(self.sharing.open_peer, offer.num_chunks, offer.chunk_nbytes)
            lender = self._lenders[path] = Lender(path, reserve, self._post)
        return lender

    def forget(self, lender: Lender) -> None:
        """A lender has ended: let go of its memory."""
        for path, known in list(self._lenders.items()):
            if known is lender:
                del self._lenders[path]
                self.sharing.synchronize()
                lender.close()

    def close(self) -> None:
        """Let go of everything."""
        for lender in list(self._lenders.values()):
            self.forget(lender)
