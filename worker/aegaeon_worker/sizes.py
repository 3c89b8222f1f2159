"""Memory sizes that the command line leaves open: from the YAML file, else from the machine."""

from __future__ import annotations

import os
from dataclasses import astuple as dc_astuple
from dataclasses import dataclass, replace
from pathlib import Path

from aegaeon.config.cluster import cluster_config
from aegaeon.local.memory_plan import MemoryPlan, plan_memory
from aegaeon.machine import detect_machine
from aegaeon.node_config import NodeConfig


@dataclass(frozen=True)
class GivenSizes:
    """What the command line says; None is open. Bytes."""

    cpu_num_slabs: int | None
    cpu_slab_bytes: int | None
    model_cache_bytes: int | None
    device_memory_bytes: int | None


def complete_sizes(
    given: GivenSizes, node_id: str, shm_dir: Path, config: Path | None, ranks: int
) -> MemoryPlan:
    """All sizes, checked against this machine. ``ResourceExhaustedError`` if it has less.

    ``ranks`` are the workers of each engine.
    """
    if None not in dc_astuple(given):
        # Somebody has planned for all workers of this machine; a second look would count the
        # memory of those that started before as missing.
        return MemoryPlan(*dc_astuple(given))
    if config is not None:
        node = replace(cluster_config(config)[0][0], node_id=node_id)
    else:
        node = NodeConfig(node_id, num_prefill_engines=0, num_decode_engines=0, num_engines=1)
    node = replace(
        node,
        shm_dir=os.fspath(shm_dir),
        tensor_parallel_size=ranks,
        cpu_num_slabs=given.cpu_num_slabs or node.cpu_num_slabs,
        cpu_slab_size_bytes=given.cpu_slab_bytes or node.cpu_slab_size_bytes,
        model_cache_size=given.model_cache_bytes or node.model_cache_size,
        device_memory_bytes=given.device_memory_bytes or node.device_memory_bytes,
    )
    return plan_memory([node], detect_machine(node.shm_dir))[0]
