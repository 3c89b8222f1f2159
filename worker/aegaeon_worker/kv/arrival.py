"""KV that comes from another node, while it comes."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.kv.regroup import Regroup


@dataclass(frozen=True)
class Span:
    """Host memory that stays mapped."""

    address: int
    nbytes: int


class Arrival:
    """Blocks of this worker that a sequence's KV is written to, from the first byte on.

    Who writes runs on another thread than who owns the blocks. The owner may free them as soon as
    ``close`` has returned: it waits for a write under way, and no other follows. So a transfer may
    break off, or be given up, at any byte.
    """

    def __init__(
        self, sequence: int, place: KvPlace, content: int, regroup: Regroup | None = None
    ) -> None:
        """``place`` is on another node; ``content`` is what it must be published as.

        With ``regroup``, every block is put into another order when it is complete.
        """
        self.sequence = sequence
        self.place = place
        self.content = content
        self.nbytes = place.nbytes
        self.received = 0
        """Bytes written so far."""
        self._regroup = regroup
        self._ordered = 0
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._closed = False
        self._on_close: Callable[[], None] | None = None

    @property
    def complete(self) -> bool:
        """Everything has come."""
        return self.received == self.nbytes

    @property
    def closed(self) -> bool:
        """Nothing more is taken."""
        return self._closed

    def open(self, spans: Sequence[Span]) -> None:
        """Say where the bytes go; together the spans must hold all of them."""
        self._spans = list(spans)

    def write(self, data: bytes) -> bool:
        """Append bytes; false, and nothing written, once closed. ``ValueError`` past the end."""
        with self._lock:
            if self._closed:
                return False
            if self.received + len(data) > self.nbytes:
                raise ValueError(
                    f"{self.received} + {len(data)} bytes are more than the {self.nbytes} asked for"
                )
            self._copy(data)
            self.received += len(data)
            if self._regroup is not None:
                self._order(self._regroup)
            return True

    def close(self) -> None:
        """Take nothing more. Idempotent."""
        with self._lock:
            self._closed = True
            on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def when_closed(self, call: Callable[[], None]) -> None:
        """Call once when it closes, from the owner's thread; at once if it has."""
        with self._lock:
            if not self._closed:
                self._on_close = call
                return
        call()

    def _order(self, regroup: Regroup) -> None:
        """Put the blocks in order that have become complete; none lies across spans."""
        size = self.place.block_nbytes
        while (self._ordered + 1) * size <= self.received:
            skip = self._ordered * size
            for span in self._spans:
                if skip < span.nbytes:
                    block = ctypes.string_at(span.address + skip, size)
                    ctypes.memmove(span.address + skip, regroup.apply(block), size)
                    break
                skip -= span.nbytes
            self._ordered += 1

    def _copy(self, data: bytes) -> None:
        start = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
        done, skip = 0, self.received
        for span in self._spans:
            if skip >= span.nbytes:
                skip -= span.nbytes
                continue
            count = min(span.nbytes - skip, len(data) - done)
            # Unlike a slice assignment, this lets other threads run Python meanwhile.
            ctypes.memmove(span.address + skip, start + done, count)
            done, skip = done + count, 0
            if done == len(data):
                return
