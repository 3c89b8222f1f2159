"""Which blocks hold the KV of which tokens, and who uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from aegaeon_worker.kv.place import NOWHERE, HostBlock, KvPlace

B = TypeVar("B", int, HostBlock)


@dataclass(eq=False, slots=True)
class CachedBlock:
    """KV of one full block of tokens; on the device, in host memory, or in both."""

    key: bytes
    device: int | None = None
    host: HostBlock | None = None


@dataclass
class HostRun:
    """Blocks in host memory alone that continue a sequence, in the order of their tokens."""

    keys: list[bytes] = field(default_factory=list)
    blocks: list[HostBlock] = field(default_factory=list)
    held: list[HostBlock] = field(default_factory=list)
    """Those that nobody can take meanwhile."""
    left: list[HostBlock] = field(default_factory=list)
    """The others."""
    place: KvPlace = NOWHERE
    """Where these lie, to be looked at again when they have been copied."""


class BlockUsers(Generic[B]):
    """How many sequences hold each block; a block that more than one holds is never written."""

    def __init__(self) -> None:
        self._counts: Counter[B] = Counter()

    def __getitem__(self, block: B) -> int:
        return self._counts[block]

    def __len__(self) -> int:
        """Blocks that somebody holds."""
        return len(self._counts)

    def __iter__(self) -> Iterator[B]:
        return iter(self._counts)

    def hold(self, blocks: Iterable[B]) -> None:
        """One more holds each of them."""
        for block in blocks:
            self._counts[block] += 1

    def let_go(self, blocks: Iterable[B]) -> list[B]:
        """One fewer holds each of them; those that nobody holds any more."""
        free = []
        for block in blocks:
            if self._counts[block] < 1:
                raise ValueError(f"nobody holds block {block}")
            self._counts[block] -= 1
            if not self._counts[block]:
                del self._counts[block]
                free.append(block)
        return free

    def audit(self, listed: Counter[B]) -> None:
        """Raise ``AssertionError`` unless blocks are held so often as sequences list them."""
        if self._counts != listed:
            raise AssertionError(f"blocks held: {self._counts}, listed: {listed}")


class PrefixIndex:
    """Finds blocks by key, and the key's block by its place."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, CachedBlock] = {}
        self._by_device: dict[int, CachedBlock] = {}
        self._by_host: dict[HostBlock, CachedBlock] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, key: bytes) -> CachedBlock | None:
        """What is known under a key."""
        return self._by_key.get(key)

    def on_device(self, block: int) -> CachedBlock | None:
        """What a device block is known as."""
        return self._by_device.get(block)

    def on_host(self, block: HostBlock) -> CachedBlock | None:
        """What a host block is known as."""
        return self._by_host.get(block)

    def enter_device(self, key: bytes, block: int) -> None:
        """A device block holds a key's KV; ignored while another one is known for it."""
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = CachedBlock(key)
        if found.device is None:
            found.device = block
            self._by_device[block] = found

    def enter_host(self, found: CachedBlock, block: HostBlock) -> None:
        """A host block holds the same bytes as the device block of ``found``."""
        self.forget_host(found)
        found.host = block
        self._by_key[found.key] = found
        self._by_host[block] = found

    def forget_device(self, found: CachedBlock) -> None:
        """Its device block holds something else from now on."""
        if found.device is not None:
            del self._by_device[found.device]
            found.device = None
        self._drop_if_nowhere(found)

    def forget_host(self, found: CachedBlock) -> None:
        """Its host block holds something else from now on."""
        if found.host is not None:
            del self._by_host[found.host]
            found.host = None
        self._drop_if_nowhere(found)

    def audit(self) -> None:
        """Raise ``AssertionError`` unless every entry is found by all that it says."""
        for key, found in self._by_key.items():
            if found.key != key or (found.device is None and found.host is None):
                raise AssertionError(f"cached block {found} under {key.hex()}")
        device = {f.device: f for f in self._by_key.values() if f.device is not None}
        host = {f.host: f for f in self._by_key.values() if f.host is not None}
        if device != self._by_device or host != self._by_host:
            raise AssertionError(f"device {self._by_device}, host {self._by_host}")

    def _drop_if_nowhere(self, found: CachedBlock) -> None:
        if found.device is None and found.host is None:
            self._by_key.pop(found.key, None)
