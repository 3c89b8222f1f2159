"""What a worker gives to those of other nodes, and what it does not."""

from __future__ import annotations

import grpc
import pytest

from aegaeon.errors import ErrorReason
from aegaeon.rpc.channel import open_channel
from aegaeon.rpc.status import from_rpc_error
from aegaeon.v1 import kv_pb2, kv_pb2_grpc, worker_pb2
from aegaeon_worker.kv.place import HostBlock
from aegaeon_worker.service import convert
from aegaeon_worker.service.kv_service import KvServicer
from tests.worker.service.wire_nodes import BLOCK, CONTENT, PIECE, Node, Serve


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
