"""Where KV lies in host slabs, as a contract message and as a core value."""

from __future__ import annotations

from aegaeon.v1 import worker_pb2
from aegaeon_scheduler.core.values import BlockRun, KvPlace


def kv_place(message: worker_pb2.KvPlace) -> KvPlace:
    """A place as a worker reports it."""
    runs = tuple(
        BlockRun(run.slab, run.slab_generation, run.first_block, run.num_blocks)
        for run in message.runs
    )
    return KvPlace(
        message.num_tokens,
        message.block_bytes,
        runs,
        message.address,
        message.pieces,
        message.offer,
        message.num_offered,
    )


def kv_place_message(place: KvPlace) -> worker_pb2.KvPlace:
    """The opposite of `kv_place`."""
    runs = [
        worker_pb2.BlockRun(
            slab=run.slab,
            slab_generation=run.slab_generation,
            first_block=run.first_block,
            num_blocks=run.num_blocks,
        )
        for run in place.runs
    ]
    return worker_pb2.KvPlace(
        num_tokens=place.num_tokens,
        block_bytes=place.block_bytes,
        runs=runs,
        address=place.address,
        pieces=place.pieces,
        offer=place.offer,
        num_offered=place.num_offered,
    )
