"""KV between two nodes over gRPC: what comes is right, whatever happens on the way."""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aegaeon.security.key_file import changing_keys
from aegaeon.security.keys import Key, Scope, make_key
from aegaeon.security.settings import PLAIN, SecuritySettings
from aegaeon.v1 import kv_pb2
from aegaeon_worker.service import kv_wire
from aegaeon_worker.service.kv_service import KvServicer
from aegaeon_worker.service.kv_wire import KvWire
from tests.security.certificates import Authority
from tests.worker.service.wire_nodes import PIECE, Faulty, Node, Serve, at


@pytest.fixture
async def wire() -> AsyncIterator[KvWire]:
    wire = KvWire(PLAIN)
    yield wire
    await wire.close()


async def test_all_bytes_come_where_they_belong(node: Node, serve: Serve, wire: KvWire) -> None:
    target = at(node, await serve(KvServicer(node.reader)))
    end = await target.fetch(wire)
    assert target.arrival.complete
    assert target.data == node.data
    assert end.interruptions == 0
    assert end.transfer_ns > 0


@pytest.mark.parametrize("scope", [Scope.CLUSTER, Scope.ADMIN])
async def test_kv_is_for_parts_of_the_cluster_alone_and_encrypted(
    node: Node, serve: Serve, tmp_path: Path, scope: Scope
) -> None:
    authority = Authority(tmp_path / "authority")
    pair = authority.sign("worker")
    new = make_key()
    with changing_keys(tmp_path / "keys.json") as table:
        table[new.key_id] = Key(new.key_id, "app", new.salt, new.digest, frozenset([scope]))
    (tmp_path / "token").write_text(new.text)
    security = SecuritySettings(
        tls_ca=authority.ca,
        tls_cert=pair.cert,
        tls_key=pair.key,
        keys_file=tmp_path / "keys.json",
        token_file=tmp_path / "token",
    )
    target = at(node, await serve(KvServicer(node.reader), security))
    wire = KvWire(security)
    end = await target.fetch(wire)
    await wire.close()
    if scope is Scope.CLUSTER:
        assert target.data == node.data
    else:
        assert (target.arrival.received, end.interruptions) == (0, 1)
    plain = at(node, target.arrival.place.address)
    stranger = KvWire(PLAIN)
    await plain.fetch(stranger)
    await stranger.close()
    assert plain.arrival.received == 0


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
