"""What tests of transfers share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from aegaeon.rpc.address import bind
from aegaeon.rpc.channel import make_server
from aegaeon.security.settings import PLAIN, SecuritySettings
from aegaeon.v1 import kv_pb2_grpc
from aegaeon_worker.kv import slab_reader
from aegaeon_worker.service import kv_wire
from tests.worker.service.wire_nodes import PIECE, Node, Serve


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slab_reader, "PIECE_NBYTES", PIECE)
    monkeypatch.setattr(kv_wire, "_RETRY_S", 0.01)


@pytest.fixture
def node(tmp_path: Path, quick: None) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers = []

    async def start(
        servicer: kv_pb2_grpc.KvServiceServicer, security: SecuritySettings = PLAIN
    ) -> str:
        server = make_server(security)
        kv_pb2_grpc.add_KvServiceServicer_to_server(servicer, server)
        address = bind(server, "127.0.0.1:0", insecure_bind=False, settings=security)
        await server.start()
        servers.append(server)
        return address

    yield start
    for server in servers:
        await server.stop(grace=None)
