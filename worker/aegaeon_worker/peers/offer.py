"""What a worker writes down about KV that it leaves on its device for another one."""

from __future__ import annotations

import enum
import json
import shutil
import uuid
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from aegaeon_worker.kv.place import BlockRun, KvPlace

_SOCKET = "socket"
_ON_DEVICE = ("content", "device", "num_chunks", "chunk_nbytes")


class Extents(NamedTuple):
    """Parts of memory in order: where each starts, counted over a device's chunks, and its bytes.

    Two plain columns, which JSON reads and writes fastest.
    """

    starts: tuple[int, ...]
    sizes: tuple[int, ...]


_NO_EXTENTS = Extents((), ())


class OfferState(enum.Enum):
    """Where offered KV is."""

    DEVICE = "device"
    #: On its way to the host slabs.
    MOVING = "moving"
    SLABS = "slabs"


@dataclass(frozen=True)
class Offer:
    """KV of one sequence, as its worker last wrote it down."""

    state: OfferState
    content: int = 0
    """As in ``KvShape.content``."""
    device: str = ""
    """As in ``DeviceSharing.name``."""
    num_chunks: int = 0
    chunk_nbytes: int = 0
    extents: Extents = _NO_EXTENTS
    """Of its blocks in order."""
    place: KvPlace | None = None
    """In the slabs."""

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(self.extents.sizes)

    @cached_property
    def chunks(self) -> list[int]:
        """Chunks that it lies in."""
        size = self.chunk_nbytes
        parts = zip(*self.extents, strict=True)
        return sorted({c for s, n in parts for c in range(s // size, (s + n - 1) // size + 1)})


class OfferFolder:
    """The offers of one worker process, each in a file, and the socket at which it lends chunks.

    A file is replaced as a whole, before the blocks that it names are used for something else. So
    whoever finds it unchanged after a copy has copied what it names: no lock, and nobody to ask.
    """

    def __init__(self, root: Path, worker_index: int) -> None:
        """Make the folder in ``root``; what an earlier process of this worker left there goes."""
        for old in root.glob(f"device-{worker_index}-*"):
            shutil.rmtree(old, ignore_errors=True)
        self.path = root / f"device-{worker_index}-{uuid.uuid4().hex[:12]}"
        self.path.mkdir()
        self._next = 1

    @property
    def socket(self) -> Path:
        """Where the worker lends its chunks."""
        return self.path / _SOCKET

    def add(self, offer: Offer) -> str:
        """Write an offer down; returns its name in ``root``."""
        name = str(self._next)
        self._next += 1
        self._write(name, offer)
        return f"{self.path.name}/{name}"

    def replace(self, name: str, offer: Offer) -> None:
        """Say where it is now."""
        self._write(name.rpartition("/")[2], offer)

    def remove(self, name: str) -> None:
        """It is gone."""
        (self.path / name.rpartition("/")[2]).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _write(self, name: str, offer: Offer) -> None:
        fresh = self.path / f".{name}"
        fresh.write_text(json.dumps(_to_json(offer), separators=(",", ":")))
        fresh.rename(self.path / name)


def read_offer(root: Path, name: str) -> Offer | None:
    """What is written down of an offer; none if it, or its worker's folder, is gone."""
    try:
        return _parsed((root / name).read_text())
    except (OSError, ValueError, KeyError, TypeError):
        return None


@lru_cache(maxsize=16)
def _parsed(text: str) -> Offer:
    """Kept for the second look after the copy, which mostly finds the same."""
    return _from_json(json.loads(text))


def offer_socket(root: Path, name: str) -> Path:
    """Where the worker of an offer lends its chunks."""
    return root / name.partition("/")[0] / _SOCKET


def valid_name(name: str) -> bool:
    """Whether a name leads nowhere but to an offer."""
    folder, slash, number = name.partition("/")
    return bool(slash) and number.isdigit() and folder.startswith("device-") and "." not in folder


def _to_json(offer: Offer) -> dict[str, object]:
    fields: dict[str, object] = {"state": offer.state.value}
    if offer.state is OfferState.DEVICE:
        fields |= {name: getattr(offer, name) for name in _ON_DEVICE}
        fields["extents"] = offer.extents
    if offer.place is not None:
        place = offer.place
        runs = [(r.slab, r.generation, r.first_block, r.num_blocks) for r in place.runs]
        fields["place"] = [place.num_tokens, place.block_nbytes, runs, place.pieces]
    return fields


def _from_json(fields: dict[str, Any]) -> Offer:
    state = OfferState(fields["state"])
    if state is OfferState.DEVICE:
        starts, sizes = (tuple(map(int, column)) for column in fields["extents"])
        own = {name: fields[name] for name in _ON_DEVICE}
        return Offer(state, **own, extents=Extents(starts, sizes))
    if state is OfferState.SLABS:
        tokens, nbytes, runs, pieces = fields["place"]
        place = KvPlace(tokens, nbytes, tuple(BlockRun(*run) for run in runs), pieces=pieces)
        return Offer(state, place=place)
    return Offer(state)
