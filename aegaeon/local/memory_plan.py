"""How much memory each node's daemons get, checked before anything is allocated."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aegaeon.errors import ErrorReason, ResourceExhaustedError
from aegaeon.machine import Machine
from aegaeon.node_config import NodeConfig

_log = logging.getLogger(__name__)

_MIB = 1024**2
_GIB = 1024**3
# Shares of a node's part of the available memory; the rest is left to programs and activations.
_SLAB_SHARE = 0.10
_CACHE_SHARE = 0.25
_DEVICE_SHARE = 0.35
_USABLE_SHARE = 0.9
_MAX_SLABS = 128
_MAX_SLAB_BYTES = _GIB
_SLABS_WANTED = 32
_MIN_CACHE_BYTES = 16 * _MIB


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes for one node. ``device_bytes`` is per worker."""

    cpu_num_slabs: int
    cpu_slab_bytes: int
    cache_bytes: int
    device_bytes: int


def plan_memory(nodes: Sequence[NodeConfig], machine: Machine) -> list[MemoryPlan]:
    """One plan per node, all on this machine.

    Raises ResourceExhaustedError when a budget is more than the machine has, or when slabs and
    device pools together leave no room for weights. A weight cache that does not fit besides them
    is an upper bound that is never reached: it is cut, with a warning.
    """
    share = machine.memory_available // max(1, len(nodes))
    plans = [_plan(node, share, machine) for node in nodes]
    _check_total(nodes, plans, machine)
    return [_cut_cache(node, plan, plans, machine) for node, plan in zip(nodes, plans, strict=True)]


def _plan(node: NodeConfig, share: int, machine: Machine) -> MemoryPlan:
    slabs, slab_bytes = _slabs(node, int(min(share, machine.shm_free) * _SLAB_SHARE))
    workers = len(node.worker_roles)
    cache_share = int(min(share, machine.shm_free) * _CACHE_SHARE)
    plan = MemoryPlan(
        cpu_num_slabs=slabs,
        cpu_slab_bytes=slab_bytes,
        cache_bytes=node.model_cache_size or cache_share,
        device_bytes=node.device_memory_bytes or int(share * _DEVICE_SHARE) // workers,
    )
    host = min(machine.memory_available, machine.shm_free)
    _check(node, "cpu_num_slabs * cpu_slab_size_bytes", slabs * slab_bytes, host, machine)
    # An upper bound: what is more than there is room for just now is cut, see `_cut_cache`.
    whole = min(machine.memory_total, machine.shm_total)
    _check(node, "model_cache_size", plan.cache_bytes, whole, machine)
    pools = plan.device_bytes * workers
    _check(node, "device_memory_bytes of all workers", pools, machine.memory_available, machine)
    return plan


def _slabs(node: NodeConfig, target: int) -> tuple[int, int]:
    """Number and size of slabs; whichever is not given is chosen to come near ``target`` bytes."""
    size = node.cpu_slab_size_bytes
    if size is None:
        wanted = target // (node.cpu_num_slabs or _SLABS_WANTED)
        size = max(_MIB, min(_MAX_SLAB_BYTES, wanted // _MIB * _MIB))
    number = node.cpu_num_slabs or max(1, min(_MAX_SLABS, target // size))
    return number, size


def _check(node: NodeConfig, field: str, asked: int, available: int, machine: Machine) -> None:
    if asked > available:
        raise ResourceExhaustedError(
            f"NodeConfig {node.node_id!r}: {field} asks for {_gib(asked)}, more than "
            f"{_gib(available)}: this machine has {_gib(machine.memory_available)} of memory "
            f"available and {_gib(machine.shm_free)} free in {machine.shm_dir}; ask for "
            "less, leave the field out to have it sized, or give another shm_dir",
            reason=ErrorReason.INSUFFICIENT_MEMORY,
            metadata={"field": field, "needed_bytes": asked, "available_bytes": available},
        )


def _fixed(node: NodeConfig, plan: MemoryPlan) -> int:
    return plan.cpu_num_slabs * plan.cpu_slab_bytes + plan.device_bytes * len(node.worker_roles)


def _check_total(
    nodes: Sequence[NodeConfig], plans: Sequence[MemoryPlan], machine: Machine
) -> None:
    fixed = sum(_fixed(node, plan) for node, plan in zip(nodes, plans, strict=True))
    slabs = sum(plan.cpu_num_slabs * plan.cpu_slab_bytes for plan in plans)
    room = _MIN_CACHE_BYTES * len(nodes)
    for what, asked, available in (
        ("KV slabs and device pools", fixed, machine.memory_available),
        ("KV slabs", slabs, machine.shm_free),
    ):
        if asked + room > available:
            raise ResourceExhaustedError(
                f"{what} of all nodes together ask for {_gib(asked)}, which leaves no room for "
                f"weights: this machine has {_gib(machine.memory_available)} of memory available "
                f"and {_gib(machine.shm_free)} free in {machine.shm_dir}; lower cpu_num_slabs, "
                "cpu_slab_size_bytes or device_memory_bytes, or give another shm_dir",
                reason=ErrorReason.INSUFFICIENT_MEMORY,
                metadata={"needed_bytes": asked, "available_bytes": available},
            )


def _cut_cache(
    node: NodeConfig, plan: MemoryPlan, plans: Sequence[MemoryPlan], machine: Machine
) -> MemoryPlan:
    slabs = plan.cpu_num_slabs * plan.cpu_slab_bytes
    memory = int(machine.memory_available * _USABLE_SHARE) // len(plans) - _fixed(node, plan)
    shared = machine.shm_free // len(plans) - slabs
    room = max(_MIN_CACHE_BYTES, min(memory, shared))
    if plan.cache_bytes <= room:
        return plan
    if node.model_cache_size is not None:
        _log.warning(
            "NodeConfig %r: model_cache_size is cut from %s to %s, what this machine can hold "
            "besides %s of KV slabs and %d device pools of %s",
            node.node_id,
            _gib(plan.cache_bytes),
            _gib(room),
            _gib(slabs),
            len(node.worker_roles),
            _gib(plan.device_bytes),
        )
    return replace(plan, cache_bytes=room)


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB ({size} bytes)"
