"""How fast KV has moved between nodes, and within them."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

#: Expected before the first transfer: a network of 10 Gbit/s.
_FIRST_BYTES_PER_S = 1.0e9
#: Cost of a transfer however small it is.
_SETUP_NS = 1_000_000
#: Smaller transfers say nothing of the pace of larger ones.
_TELLING_BYTES = 1 << 20
#: What a transfer counts for when the next one has been measured.
_KEPT = 0.8
#: A link on which a transfer broke off is avoided for so long, where there is another way.
_AVOIDED_NS = 30_000_000_000


class Transport(enum.IntEnum):
    """How KV goes from one engine to another; numbers equal the contract's."""

    #: Through host slabs that both map.
    SLABS = 1
    #: As a stream between nodes, to slabs of the target.
    WIRE = 2
    #: From one device of a node to another.
    DEVICE = 3


@dataclass(slots=True)
class Link:
    """KV of one node for engines of another, or for its own. Totals are since start or reset."""

    transport: Transport
    transfers: int = 0
    interruptions: int = 0
    num_bytes: int = 0
    time_ns: int = 0
    #: Why the latest transfer did not go from device to device, through the slabs of one node.
    device_obstacle: str = ""
    #: Of the latest large transfers, the older the less.
    _recent_bytes: float = 0.0
    _recent_ns: float = 0.0
    _avoid_until_ns: int = 0

    @property
    def bytes_per_s(self) -> float:
        """Of the latest transfers of at least 1 MiB; 0 before the first."""
        return self._recent_bytes / self._recent_ns * 1e9 if self._recent_ns else 0.0

    def measured(self, num_bytes: int, time_ns: int) -> None:
        """A transfer has brought something."""
        self.transfers += 1
        self.num_bytes += num_bytes
        self.time_ns += time_ns
        if num_bytes >= _TELLING_BYTES:
            self._recent_bytes = _KEPT * self._recent_bytes + num_bytes
            self._recent_ns = _KEPT * self._recent_ns + time_ns

    def interrupted(self, times: int, now_ns: int) -> None:
        """A transfer broke off."""
        self.interruptions += times
        self._avoid_until_ns = now_ns + _AVOIDED_NS

    def expected_ns(self, num_bytes: int, now_ns: int) -> float:
        """Time of a transfer; while the link is to be avoided, longer than any other."""
        if now_ns < self._avoid_until_ns:
            return float(_AVOIDED_NS)
        return _SETUP_NS + num_bytes / (self.bytes_per_s or _FIRST_BYTES_PER_S) * 1e9

    def reset(self) -> None:
        """Set the totals to zero; what is expected stays."""
        self.transfers = self.interruptions = self.num_bytes = self.time_ns = 0
        self.device_obstacle = ""


@dataclass(slots=True)
class Links:
    """By the ids of source and target node, and by the way within a node; those that never carried
    anything are not there."""

    _links: dict[tuple[str, str, Transport], Link] = field(default_factory=dict)

    def between(self, source: str, target: str, *, on_device: bool = False) -> Link:
        """The link, made when it is first asked for; within a node, ``on_device`` or by slabs."""
        near = Transport.DEVICE if on_device else Transport.SLABS
        transport = near if source == target else Transport.WIRE
        return self._links.setdefault((source, target, transport), Link(transport))

    def used(self) -> Iterator[tuple[str, str, Link]]:
        """Source, target and link, of those that have carried something or failed to."""
        for (source, target, _), link in sorted(self._links.items(), key=lambda item: item[0]):
            if link.transfers or link.interruptions:
                yield source, target, link

    def expected_ns(self, source: str, target: str, num_bytes: int, now_ns: int) -> float:
        """Time to bring KV from one node to another; nothing where both are the same."""
        if source == target:
            return 0.0
        return self.between(source, target).expected_ns(num_bytes, now_ns)

    def reset(self) -> None:
        """As `Link.reset`, of all."""
        for link in self._links.values():
            link.reset()
