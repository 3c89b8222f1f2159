"""A worker's KV on its device, for others of its node to read there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aegaeon_worker.device.pool import DevicePool
from aegaeon_worker.device.sharing import DeviceSharing
from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.peers.chunk_server import ChunkServer
from aegaeon_worker.peers.offer import (
    Extents,
    Offer,
    OfferFolder,
    OfferState,
    read_offer,
    valid_name,
)


@dataclass(frozen=True)
class SaveOffer:
    """Bring an offer to the slabs, or find that it is gone, and call ``done`` then."""

    number: int
    done: Callable[[], None]


class Offered:
    """One sequence's KV that others may read; its file tells where it is, at any moment."""

    def __init__(self, folder: OfferFolder, offer: Offer, on_withdraw: Callable[[], None]) -> None:
        self._folder = folder
        self._state: OfferState | None = offer.state
        self._on_withdraw = on_withdraw
        self._waiting: list[Callable[[], None]] = []
        self.name = folder.add(offer)
        """In the node's folder of KV."""

    @property
    def number(self) -> int:
        """Of the offer, among those of this worker."""
        return int(self.name.rpartition("/")[2])

    @property
    def on_device(self) -> bool:
        """Others may be reading its device blocks."""
        return self._state is OfferState.DEVICE

    def withdraw(self) -> None:
        """Its device blocks are about to be used for something else."""
        if self.on_device:
            self._state = OfferState.MOVING
            self._folder.replace(self.name, Offer(OfferState.MOVING))
            self._on_withdraw()

    def moved(self, place: KvPlace) -> None:
        """It is in the slabs."""
        self._state = OfferState.SLABS
        self._folder.replace(self.name, Offer(OfferState.SLABS, place=place))
        self._tell()

    def when_moved(self, tell: Callable[[], None]) -> None:
        """Call once it is in the slabs, or gone."""
        self._waiting.append(tell)
        if self._state in (None, OfferState.SLABS):
            self._tell()

    def close(self) -> None:
        """It is gone."""
        self._state = None
        self._folder.remove(self.name)
        self._tell()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for tell in waiting:
            tell()


class Lending:
    """The offers of this worker, and the socket at which it lends the chunks that hold them."""

    def __init__(
        self,
        root: Path,
        worker_index: int,
        sharing: DeviceSharing,
        pool: DevicePool,
        post: Callable[[SaveOffer], None],
    ) -> None:
        """``root`` is the node's folder of KV; ``post`` reaches the engine."""
        self._root = root
        self._pool = pool
        self._post = post
        self._device = sharing.name
        self._folder = OfferFolder(root, worker_index)
        self._server = ChunkServer(
            self._folder.socket,
            sharing.export,
            lambda number, done: post(SaveOffer(number, done)),
        )

    def offer(
        self,
        content: int,
        extents: Extents,
        on_withdraw: Callable[[], None],
    ) -> Offered:
        """Let others read what lies there, until it is withdrawn."""
        pool = self._pool
        offer = Offer(
            OfferState.DEVICE, content, self._device, pool.num_chunks, pool.chunk_nbytes, extents
        )
        return Offered(self._folder, offer, on_withdraw)

    def save(self, name: str, done: Callable[[], None]) -> None:
        """Bring an offer of this worker to the slabs; ``done`` is called then, or if it is gone."""
        folder, _, number = name.partition("/")
        if folder == self._folder.path.name and number.isdigit():
            self._post(SaveOffer(int(number), done))
        else:
            done()

    def read(self, name: str) -> Offer | None:
        """What is written down of an offer of this worker; none if it is gone."""
        own = name.partition("/")[0] == self._folder.path.name
        return read_offer(self._root, name) if own and valid_name(name) else None

    def close(self) -> None:
        """Lend nothing any more."""
        self._server.close()
        self._folder.close()
