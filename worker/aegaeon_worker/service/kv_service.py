"""KvService: what this node's workers have published, for those of other nodes."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from typing import Any

from aegaeon.errors import AegaeonError, ErrorReason, InvalidRequestError, NotFoundError
from aegaeon.rpc.status import abort
from aegaeon.v1 import kv_pb2, kv_pb2_grpc
from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.kv.shape import KvShape
from aegaeon_worker.kv.slab_reader import SlabReader
from aegaeon_worker.peers.links import ALONE, PeerLinks
from aegaeon_worker.service import convert


class KvServicer(kv_pb2_grpc.KvServiceServicer):
    """Sends piece by piece, as fast as a reader takes them, and holds one of them per call."""

    def __init__(self, reader: SlabReader, peers: PeerLinks = ALONE) -> None:
        """``peers`` brings what this worker still has on its device to the slabs."""
        self._reader = reader
        self._peers = peers

    async def ReadKv(  # noqa: N802 (the contract's name)
        self, request: kv_pb2.ReadKvRequest, context: Any
    ) -> AsyncIterator[kv_pb2.ReadKvResponse]:
        """Published blocks as a stream of bytes."""
        try:
            place = await self._in_slabs(_place(request))
            offset = request.first_byte
            while offset < place.nbytes:
                data = self._reader.read(place, request.content, offset)
                yield kv_pb2.ReadKvResponse(offset=offset, crc32=zlib.crc32(data), data=data)
                offset += len(data)
        except AegaeonError as error:
            await abort(context, error)

    async def _in_slabs(self, place: KvPlace) -> KvPlace:
        """The same KV in the slabs; ``NotFoundError`` (KV_NOT_FOUND) if it is gone."""
        if not place.offer:
            return place
        found = await self._peers.in_slabs(place.offer)
        if found is None or found.nbytes != place.nbytes:
            raise NotFoundError(
                f"the KV of offer {place.offer} is gone; compute it again",
                reason=ErrorReason.KV_NOT_FOUND,
            )
        return found


def _place(request: kv_pb2.ReadKvRequest) -> KvPlace:
    place = convert.place_from_pb(request.kv)
    if not place.num_tokens or not place.block_nbytes or not all(r.num_blocks for r in place.runs):
        raise _invalid("kv", place.num_tokens, "tokens in blocks of at least 1 byte")
    needed = KvShape.blocks_for(place.num_tokens) * place.block_nbytes
    if place.nbytes != needed:
        raise _invalid("kv.runs", place.nbytes, f"blocks of {needed} bytes in all")
    if request.first_byte > place.nbytes:
        raise _invalid("first_byte", request.first_byte, f"at most {place.nbytes}")
    return place


def _invalid(field: str, value: int, rule: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{field} is {value}; it must be {rule}", metadata={"field": field, "value": value}
    )
