"""A worker's parts, put together and taken apart in order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import torch

from aegaeon_worker.config import WorkerConfig
from aegaeon_worker.device.choice import DeviceRequest, default_dtype, open_device
from aegaeon_worker.engine.commands import FetchEnded
from aegaeon_worker.engine.engine import Engine
from aegaeon_worker.engine.events import MemoryUsage
from aegaeon_worker.engine.loading import ModelPreparer
from aegaeon_worker.engine.model_table import ModelTable
from aegaeon_worker.engine.packers import Packers
from aegaeon_worker.engine.thread import EngineThread
from aegaeon_worker.grammar.constraints import Constraints
from aegaeon_worker.kv.arrival import Arrival
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.memory_manager import MemoryManager
from aegaeon_worker.models.loader import TransformersLoader
from aegaeon_worker.weights.cache import WeightCache
from aegaeon_worker.weights.instance_dir import InstanceDir

CarryKv = Callable[[Callable[[FetchEnded], None], Arrival], None]
"""Begins to bring KV from another node, and tells its end, from any thread."""


class WorkerParts:
    """Everything behind the gRPC face of a worker."""

    def __init__(self, config: WorkerConfig, carry: CarryKv | None = None) -> None:
        """Take memory and files; an error gives back what was taken.

        ``carry`` brings KV from other nodes; without it, such KV is computed again.
        """
        with ExitStack() as stack:
            self._build(config, carry, stack)
            self._stack = stack.pop_all()

    def start(self) -> None:
        """Run the engine on its thread."""
        self.thread.start(self.engine)

    def close(self) -> None:
        """Stop the engine at its next token boundary and give every byte and file back."""
        self._stack.close()

    def _build(self, config: WorkerConfig, carry: CarryKv | None, stack: ExitStack) -> None:
        if config.threads:
            torch.set_num_threads(config.threads)
        instance = InstanceDir.open(
            config.shm_dir,
            config.instance,
            # Workers of one node and service share its memory; the scheduler names the service.
            token=f"{config.scheduler} {config.node_id}",
            ephemeral=not config.keep_weights,
        )
        stack.callback(partial(instance.close, keep_weights=config.keep_weights))
        self.device = open_device(_device_request(config), stack)
        slabs = HostSlabs(instance.kv_dir, config.cpu_num_slabs, config.cpu_slab_bytes, self.device)
        stack.callback(slabs.close)
        self.slab_reader = slabs.reader()
        stack.callback(self.slab_reader.close)
        cache = WeightCache(instance.weights_dir, config.model_cache_bytes, self.device)
        stack.callback(cache.close)
        self.thread = EngineThread()
        bring = partial(carry, self.thread.submit) if carry else None
        memory = MemoryManager(self.device, slabs, bring)
        stack.callback(memory.close)
        self.preparer = ModelPreparer(
            TransformersLoader(self.device.torch_device),
            cache,
            default_dtype(self.device),
            config.model_rules,
        )
        packers = Packers()
        models = ModelTable(self.preparer, self.device, memory, packers, self.thread.submit)
        constraints = Constraints()
        self.engine = Engine(
            models,
            memory,
            partial(_usage, memory, slabs, cache),
            constraints,
            limits=config.step_limits,
            max_batch_sequences=config.max_batch_sequences,
        )
        # Run in reverse: the engine ends first, then the packers that post to it.
        stack.callback(models.close)
        stack.callback(constraints.close)
        stack.callback(packers.close)
        stack.callback(self.thread.stop)


def _device_request(config: WorkerConfig) -> DeviceRequest:
    return DeviceRequest(
        device=config.device,
        worker_index=config.worker_index,
        cpu_nbytes=config.device_memory_bytes,
        memory_utilization=config.memory_utilization,
        chunk_nbytes=config.device_chunk_bytes,
        lock_dir=config.shm_dir,
    )


def _usage(memory: MemoryManager, slabs: HostSlabs, cache: WeightCache) -> MemoryUsage:
    device = memory.device_usage()
    return MemoryUsage(
        device_weight_bytes=device.weights,
        device_kv_bytes=device.kv,
        device_free_bytes=device.free,
        host_kv_bytes=len(slabs.owned) * slabs.slab_nbytes,
        weight_cache_bytes=cache.used_nbytes,
        sequences=memory.num_sequences,
    )
