"""What callers expect of the cluster, to compare with what has registered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeExpectation:
    """What a topology expects of one node; zero sizes accept any."""

    node_id: str
    #: By role; workers are numbered in this order.
    num_engines: int
    num_prefill_engines: int = 0
    num_decode_engines: int = 0
    cpu_num_slabs: int = 0
    cpu_slab_bytes: int = 0
    weight_cache_bytes: int = 0
    #: Workers per engine.
    tensor_parallel_size: int = 1
