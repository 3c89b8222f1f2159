"""Two ends of a transfer: published KV here, memory that it comes to there."""

from __future__ import annotations

import asyncio
import ctypes
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from aegaeon.v1 import kv_pb2
from aegaeon_worker.engine.commands import FetchEnded
from aegaeon_worker.kv.arrival import Arrival, Span
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.service.kv_service import KvServicer
from aegaeon_worker.service.kv_wire import KvWire

BLOCK = 24_000
SLAB = 1 << 20
CONTENT = 77
#: Smaller than a block, and no divisor of one.
PIECE = 10_000
NUM_BLOCKS = 60

Serve = Callable[..., Any]


class Node:
    """Slabs with published KV of random bytes, in runs here and there."""

    def __init__(self, folder: Path) -> None:
        self.slabs = HostSlabs(folder, 4, SLAB)
        self.reader = self.slabs.reader()
        taken = self.slabs.take(BLOCK, NUM_BLOCKS + 20)
        self.spare = taken[::4]
        self.blocks = [block for block in taken if block not in self.spare][:NUM_BLOCKS]
        bytes_of = random.Random(1)
        self.data = b""
        for block in self.blocks:
            data = bytes_of.randbytes(BLOCK)
            view = memoryview(self.slabs.view(block, 1, BLOCK).numpy())
            view[:] = data
            self.data += data
        runs = self.slabs.publish(self.blocks, CONTENT)
        self.place = KvPlace(NUM_BLOCKS * 16 - 3, BLOCK, runs)

    def close(self) -> None:
        self.reader.close()
        self.slabs.close()


class Target:
    """Memory that KV comes to, in spans of odd sizes."""

    def __init__(self, place: KvPlace) -> None:
        self.arrival = Arrival(1, place, CONTENT)
        self.memory = bytearray(self.arrival.nbytes + 2)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory)) + 1
        cut = BLOCK * 7 + 5
        spans = [Span(start, cut), Span(start + cut, self.arrival.nbytes - cut)]
        self.arrival.open(spans)
        self.ends: list[FetchEnded] = []
        self._ended = asyncio.Event()

    @property
    def data(self) -> bytes:
        return bytes(self.memory[1:-1])

    async def fetch(self, wire: KvWire) -> FetchEnded:
        wire.carry(self._end, self.arrival)
        await asyncio.wait_for(self._ended.wait(), 20)
        assert len(self.ends) == 1
        assert self.memory[0] == self.memory[-1] == 0
        return self.ends[0]

    def _end(self, end: FetchEnded) -> None:
        self.ends.append(end)
        self._ended.set()


class Faulty(KvServicer):
    """Serves with a fault: ``fault`` sees every piece, and may change it, raise, or wait."""

    def __init__(self, node: Node, fault: Callable[[int, kv_pb2.ReadKvResponse], Any]) -> None:
        super().__init__(node.reader)
        self.fault = fault
        self.calls = 0

    async def ReadKv(  # noqa: N802 (the contract's name)
        self, request: kv_pb2.ReadKvRequest, context: Any
    ) -> AsyncIterator[kv_pb2.ReadKvResponse]:
        self.calls += 1
        async for piece in super().ReadKv(request, context):
            changed = self.fault(self.calls, piece)
            if asyncio.iscoroutine(changed):
                await changed
            yield piece


def at(node: Node, address: str) -> Target:
    return Target(replace(node.place, address=address))
