"""How many connections are open, in all and per address, and which of them make room for others."""

from __future__ import annotations

import ipaddress
from typing import Protocol

#: IPv6 hosts choose the lower half of their address themselves.
_HEXTETS = 4


class Evictable(Protocol):
    """A connection, as far as its place goes."""

    def evict(self) -> None:
        """Its place has been given away: close."""


class OpenConnections:
    """Gives at most ``most`` connections a place, of one address at most ``most_per_address``.

    Those without a request, be it unfinished or none, lose their place to new ones, the oldest
    first: who opens thousands and says nothing in them only takes places from itself, or from
    others like it.
    """

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most = most
        self._most_per_address = most_per_address
        #: By connection, the address that it counts for.
        self._addresses: dict[Evictable, str] = {}
        self._counts: dict[str, int] = {}
        #: Those that may be evicted, the oldest first: in all, and by address.
        self._idle: dict[Evictable, None] = {}
        self._idle_of: dict[str, dict[Evictable, None]] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def enter(self, one: Evictable, host: str) -> str | None:
        """Give a new connection of an address a place, as one without a request; the limit that
        forbids it, if there is one, in words."""
        address = _counted_as(host)
        if self._counts.get(address, 0) >= self._most_per_address:
            if not self._evict(self._idle_of.get(address, {})):
                limit = f"{self._most_per_address} of one address"
                return f"{limit} (--max-connections-per-address)"
        elif len(self._addresses) >= self._most and not self._evict(self._idle):
            return f"{self._most} in all (--max-connections)"
        self._addresses[one] = address
        self._counts[address] = self._counts.get(address, 0) + 1
        self.rest(one)
        return None

    def rest(self, one: Evictable) -> None:
        """It has no request any more."""
        address = self._addresses.get(one)
        if address is not None:
            self._idle[one] = None
            self._idle_of.setdefault(address, {})[one] = None

    def work(self, one: Evictable) -> None:
        """It has a request, and keeps its place."""
        self._idle.pop(one, None)
        address = self._addresses.get(one)
        if address is not None and (idle := self._idle_of.get(address)) is not None:
            idle.pop(one, None)
            if not idle:
                del self._idle_of[address]

    def leave(self, one: Evictable) -> None:
        """It is closed, or was never given a place."""
        self.work(one)
        address = self._addresses.pop(one, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def _evict(self, idle: dict[Evictable, None]) -> bool:
        """Make room; whether there was any to be made."""
        oldest = next(iter(idle), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.evict()
        return True


def _counted_as(host: str) -> str:
    """IPv4 addresses one by one, IPv6 addresses by their network of 64 bits."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return ":".join(address.exploded.split(":")[:_HEXTETS])
