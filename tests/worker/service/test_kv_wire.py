"""KV between two nodes over gRPC: what comes is right, whatever happens on the way."""

from __future__ import annotations

import asyncio
import ctypes
import random
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from aegaeon.errors import ErrorReason
from aegaeon.rpc.channel import open_channel, server_options
from aegaeon.rpc.status import from_rpc_error
from aegaeon.security.settings import PLAIN
from aegaeon.v1 import kv_pb2, kv_pb2_grpc, worker_pb2
from aegaeon_worker.engine.commands import FetchEnded
from aegaeon_worker.kv import slab_reader
from aegaeon_worker.kv.arrival import Arrival, Span
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.place import HostBlock, KvPlace
from aegaeon_worker.service import convert, kv_wire
from aegaeon_worker.service.kv_service import KvServicer
from aegaeon_worker.service.kv_wire import KvWire

BLOCK = 24_000
SLAB = 1 << 20
CONTENT = 77
#: Smaller than a block, and no divisor of one.
PIECE = 10_000
NUM_BLOCKS = 60

Serve = Callable[[kv_pb2_grpc.KvServiceServicer], Any]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slab_reader, "PIECE_NBYTES", PIECE)
    monkeypatch.setattr(kv_wire, "_RETRY_S", 0.01)


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


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers = []

    async def start(servicer: kv_pb2_grpc.KvServiceServicer) -> str:
        server = grpc.aio.server(options=server_options())
        kv_pb2_grpc.add_KvServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        await server.stop(grace=None)


@pytest.fixture
async def wire() -> AsyncIterator[KvWire]:
    wire = KvWire(PLAIN)
    yield wire
    await wire.close()


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


async def test_all_bytes_come_where_they_belong(node: Node, serve: Serve, wire: KvWire) -> None:
    target = at(node, await serve(KvServicer(node.reader)))
    end = await target.fetch(wire)
    assert target.arrival.complete
    assert target.data == node.data
    assert end.interruptions == 0
    assert end.transfer_ns > 0


async def test_a_stream_cut_anywhere_is_resumed_there(
    node: Node, serve: Serve, wire: KvWire
) -> None:
    cuts = random.Random(2)

    def cut(_: int, piece: kv_pb2.ReadKvResponse) -> None:
        if cuts.random() < 0.1:
            raise RuntimeError("cut")
        kept = cuts.randint(1, len(piece.data))
        if cuts.random() < 0.1:  # a short piece, after which nothing fits: the reader asks again
            piece.data = piece.data[:kept]
            piece.crc32 = zlib.crc32(piece.data)

    servicer = Faulty(node, cut)
    target = at(node, await serve(servicer))
    end = await target.fetch(wire)
    assert target.data == node.data
    assert end.interruptions == servicer.calls - 1 > 5


@pytest.mark.parametrize("damage", ["data", "crc32", "offset"])
async def test_a_damaged_piece_is_asked_for_again(
    node: Node, serve: Serve, wire: KvWire, damage: str
) -> None:
    def change(call: int, piece: kv_pb2.ReadKvResponse) -> None:
        if call > 2 or not piece.offset:
            return
        if damage == "data":
            piece.data = bytes([piece.data[0] ^ 1]) + piece.data[1:]
        else:
            setattr(piece, damage, getattr(piece, damage) ^ 1)

    target = at(node, await serve(Faulty(node, change)))
    end = await target.fetch(wire)
    assert target.data == node.data
    assert end.interruptions == 2


async def test_nothing_is_written_past_the_end(node: Node, serve: Serve, wire: KvWire) -> None:
    def lengthen(_: int, piece: kv_pb2.ReadKvResponse) -> None:
        piece.data += b"more" * 10_000
        piece.crc32 = zlib.crc32(piece.data)

    target = at(node, await serve(Faulty(node, lengthen)))
    end = await target.fetch(wire)
    assert end.interruptions >= 1
    assert not target.arrival.complete


async def test_freed_kv_is_not_asked_for_twice_and_what_came_is_good(
    node: Node, serve: Serve, wire: KvWire
) -> None:
    def free(_: int, piece: kv_pb2.ReadKvResponse) -> None:
        if piece.offset == 3 * PIECE:
            node.slabs.give_back(node.blocks)

    servicer = Faulty(node, free)
    target = at(node, await serve(servicer))
    end = await target.fetch(wire)
    received = target.arrival.received
    assert received == 4 * PIECE
    assert target.data[:received] == node.data[:received]
    assert (servicer.calls, end.interruptions) == (1, 1)


async def test_a_stalled_source_is_given_up(
    node: Node, serve: Serve, wire: KvWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_wire, "_STALL_S", 0.1)

    def stall(_: int, piece: kv_pb2.ReadKvResponse) -> Any:
        return asyncio.sleep(60) if piece.offset >= 5 * PIECE else None

    target = at(node, await serve(Faulty(node, stall)))
    end = await target.fetch(wire)
    assert target.arrival.received == 5 * PIECE
    assert target.data[: 5 * PIECE] == node.data[: 5 * PIECE]
    assert 1 <= end.interruptions <= 4


async def test_nobody_there_is_noticed_soon(node: Node, wire: KvWire) -> None:
    target = at(node, "127.0.0.1:1")
    start = time.monotonic()
    end = await target.fetch(wire)
    assert (target.arrival.received, end.interruptions) == (0, 3)
    assert time.monotonic() - start < 5


async def test_a_trickle_is_given_up(
    node: Node, serve: Serve, wire: KvWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_wire, "_STALL_S", 0.3)
    monkeypatch.setattr(kv_wire, "_LEAST_BYTES_PER_S", 1e9)
    target = at(node, await serve(Faulty(node, lambda *_: asyncio.sleep(0.1))))
    end = await target.fetch(wire)
    assert 0 < target.arrival.received < target.arrival.nbytes
    assert end.interruptions == 1


async def test_a_closed_arrival_ends_its_transfer_at_once(
    node: Node, serve: Serve, wire: KvWire
) -> None:
    waiting = asyncio.Event()

    def wait(_: int, piece: kv_pb2.ReadKvResponse) -> Any:
        if piece.offset < 2 * PIECE:
            return None
        waiting.set()
        return asyncio.sleep(60)

    target = at(node, await serve(Faulty(node, wait)))
    fetching = asyncio.create_task(target.fetch(wire))
    await waiting.wait()
    target.arrival.close()
    before = target.data
    await fetching
    assert target.data == before
    assert not target.arrival.write(b"x")


async def test_the_wire_s_end_ends_every_transfer(node: Node, serve: Serve) -> None:
    wire = KvWire(PLAIN)
    target = at(node, await serve(Faulty(node, lambda *_: asyncio.sleep(60))))
    fetching = asyncio.create_task(target.fetch(wire))
    await asyncio.sleep(0.05)
    await wire.close()
    await fetching
    late = at(node, "127.0.0.1:1")
    assert (await late.fetch(wire)).interruptions == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"content": CONTENT + 1}, ErrorReason.KV_NOT_FOUND),
        ({"generation": 1}, ErrorReason.KV_NOT_FOUND),
        ({"generation": 0}, ErrorReason.KV_NOT_FOUND),
        ({"slab": 4}, ErrorReason.KV_NOT_FOUND),
        ({"slab": 3}, ErrorReason.KV_NOT_FOUND),
        ({"first_block": 2**32 - 1}, ErrorReason.KV_NOT_FOUND),
        ({"num_blocks": 0}, ErrorReason.INVALID_FIELD),
        ({"num_blocks": 2**32 - 1}, ErrorReason.INVALID_FIELD),
        ({"block_bytes": 0}, ErrorReason.INVALID_FIELD),
        ({"num_tokens": 0}, ErrorReason.INVALID_FIELD),
        ({"num_tokens": 2**60}, ErrorReason.INVALID_FIELD),
        ({"num_tokens": (2**32 - 1) * 16, "num_blocks": 2**32 - 1}, ErrorReason.KV_NOT_FOUND),
        ({"first_byte": BLOCK + 1}, ErrorReason.INVALID_FIELD),
    ],
)
async def test_what_is_not_there_is_refused(
    node: Node, serve: Serve, change: dict[str, int], reason: ErrorReason
) -> None:
    run = node.place.runs[0]
    fields = {
        "content": CONTENT,
        "generation": run.generation,
        "slab": run.slab,
        "first_block": run.first_block,
        "num_blocks": 1,
        "block_bytes": BLOCK,
        "num_tokens": 16,
        "first_byte": 0,
        **change,
    }
    request = kv_pb2.ReadKvRequest(
        kv=worker_pb2.KvPlace(
            num_tokens=fields["num_tokens"],
            block_bytes=fields["block_bytes"],
            runs=[
                worker_pb2.BlockRun(
                    slab=fields["slab"],
                    slab_generation=fields["generation"],
                    first_block=fields["first_block"],
                    num_blocks=fields["num_blocks"],
                )
            ],
        ),
        content=fields["content"],
        first_byte=fields["first_byte"],
    )
    async with open_channel(await serve(KvServicer(node.reader))) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in kv_pb2_grpc.KvServiceStub(channel).ReadKv(request):
                pass
    assert from_rpc_error(caught.value).reason is reason


async def test_a_part_is_what_was_asked_for(node: Node, serve: Serve) -> None:
    async with open_channel(await serve(KvServicer(node.reader))) as channel:
        stub = kv_pb2_grpc.KvServiceStub(channel)
        for first in (0, 1, BLOCK - 1, BLOCK * 17 + 3, len(node.data) - 1, len(node.data)):
            request = kv_pb2.ReadKvRequest(
                kv=convert.place_to_pb(node.place), content=CONTENT, first_byte=first
            )
            got = b"".join([piece.data async for piece in stub.ReadKv(request)])
            assert got == node.data[first:]


def test_blocks_that_another_owner_took_are_not_read(node: Node) -> None:
    [first, *_] = node.blocks
    node.slabs.give_back([first])
    [again] = node.slabs.take(BLOCK, 1)
    assert again == HostBlock(first.slab, first.index)
    with pytest.raises(Exception, match="freed or replaced"):
        node.reader.read(node.place, CONTENT, 0)
    assert node.reader.read(node.place, CONTENT, BLOCK) == node.data[BLOCK : BLOCK + PIECE]
