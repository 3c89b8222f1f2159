"""A worker's parts, put together and taken apart in order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from aegaeon_worker.config import WorkerConfig
from aegaeon_worker.device.choice import DeviceRequest, default_dtype, open_device
from aegaeon_worker.device.interface import Device
from aegaeon_worker.engine.commands import FetchEnded
from aegaeon_worker.engine.engine import Engine
from aegaeon_worker.engine.events import MemoryUsage
from aegaeon_worker.engine.execution import Execution, GraphRecorder, choose_execution
from aegaeon_worker.engine.loading import ModelPreparer
from aegaeon_worker.engine.model_table import MakeSteps, ModelTable, Prepared, own_steps
from aegaeon_worker.engine.packers import Packers
from aegaeon_worker.engine.status import EngineStatus
from aegaeon_worker.engine.thread import EngineThread
from aegaeon_worker.grammar.constraints import Constraints
from aegaeon_worker.kv.arrival import Arrival
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.kv.memory_manager import MemoryManager
from aegaeon_worker.kv.prefix_use import PrefixUse
from aegaeon_worker.models.loader import TransformersLoader
from aegaeon_worker.parallel.collectives import Alone
from aegaeon_worker.parallel.communicator import Communicator
from aegaeon_worker.parallel.follower import Follower
from aegaeon_worker.parallel.leader import LeadingEngine
from aegaeon_worker.parallel.link import Link
from aegaeon_worker.parallel.meeting import MeetingPlace, meeting_path
from aegaeon_worker.parallel.settings import GroupSettings
from aegaeon_worker.parallel.share import RankShare
from aegaeon_worker.peers.links import ALONE, PeerLinks
from aegaeon_worker.weights.cache import WeightCache
from aegaeon_worker.weights.instance_dir import InstanceDir

CarryKv = Callable[[Callable[[FetchEnded], None], Arrival], None]
"""Begins to bring KV from another node, and tells its end, from any thread."""


class WorkerParts:
    """Everything behind the gRPC face of a worker: an engine, or one rank of one."""

    thread: EngineThread[Any]
    """Runs the engine; a rank other than 0 has none."""

    def __init__(
        self,
        config: WorkerConfig,
        carry: CarryKv | None = None,
        choose: Callable[[Device], Execution] = choose_execution,
    ) -> None:
        """Take memory and files; an error gives back what was taken.

        ``carry`` brings KV from other nodes; without it, such KV is computed again. ``choose`` says
        how steps run on the device.
        """
        self._config = config
        self._carry = carry
        self._choose = choose
        with ExitStack() as stack:
            self._build(stack)
            self._stack = stack.pop_all()

    def start(self) -> None:
        """Run the engine, or this rank of it, on its thread."""
        self._start()

    @property
    def status(self) -> EngineStatus:
        """What the engine last said of itself."""
        return self._driven.status

    def close(self) -> None:
        """Stop the engine at its next token boundary and give every byte and file back."""
        self._stack.close()

    async def wait_broken(self) -> BaseException:
        """Return when the worker is of no more use; never after an ordinary stop."""
        if isinstance(self._driven, Follower):
            return await self._driven.wait_broken()
        return await self.thread.wait_broken()

    def _build(self, stack: ExitStack) -> None:
        config = self._config
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
        self._slabs = HostSlabs(
            instance.kv_dir, config.cpu_num_slabs, config.cpu_slab_bytes, self.device
        )
        stack.callback(self._slabs.close)
        self.slab_reader = self._slabs.reader()
        stack.callback(self.slab_reader.close)
        self._cache = WeightCache(instance.weights_dir, config.model_cache_bytes, self.device)
        stack.callback(self._cache.close)
        self.execution = self._choose(self.device)
        if config.ranks.size == 1:
            self._build_alone(stack)
        else:
            self._build_rank(instance, stack)

    def _preparer(self, collectives: Communicator | Alone) -> ModelPreparer:
        loader = TransformersLoader(self.device.torch_device, collectives)
        dtype = default_dtype(self.device)
        rules = self._config.model_rules
        return ModelPreparer(loader, self._cache, dtype, rules, collectives.ranks)

    def _build_alone(self, stack: ExitStack) -> None:
        self.preparer = self._preparer(Alone())
        packers, constraints = Packers(), Constraints()
        self.thread = EngineThread()
        self.peers = PeerLinks.open(
            self._slabs.directory,
            self._config.worker_index,
            self.device,
            self.thread.submit,
            lends=self._config.lends,
        )
        stack.callback(self.peers.close)
        make = partial(self._engine, packers=packers, constraints=constraints, peers=self.peers)
        engine = make(self.device, self.thread.submit)
        self._driven: Engine | LeadingEngine | Follower = engine
        self._start: Callable[[], None] = partial(self.thread.start, engine)
        # Run in reverse: the engine ends first, then the packers that post to it.
        stack.callback(engine.close)
        stack.callback(constraints.close)
        stack.callback(packers.close)
        stack.callback(self.thread.stop)

    def _build_rank(self, instance: InstanceDir, stack: ExitStack) -> None:
        """One of several workers that are one engine together."""
        self.peers = PeerLinks(f"{self._config.ranks.size} workers are one engine")
        # The other ranks are told the tokens of every step.
        self.execution = replace(self.execution, lookahead=0, recorder=None)
        config = self._config
        communicator = Communicator(config.ranks, self.device.torch_device, config.rank_timeout_s)
        self.preparer = self._preparer(communicator)
        settings = GroupSettings(
            config.ranks.size,
            self.device.torch_device.type,
            self.device.pool.chunk_nbytes,
            config.cpu_num_slabs,
            config.cpu_slab_bytes,
            self.device.pool.num_chunks,
        )
        meeting = meeting_path(instance.path, config.worker_index - config.ranks.rank)
        if config.ranks.rank:
            follower = Follower(
                meeting,
                settings,
                communicator,
                partial(self._share, communicator=communicator),
                partial(_pool_usage, self.device, self._cache),
                config.rank_timeout_s,
            )
            self._driven, self._start = follower, follower.start
            stack.callback(follower.stop)
            return
        packers, constraints = Packers(), Constraints()
        self.thread = EngineThread()
        leading = LeadingEngine(
            partial(self._engine, packers=packers, constraints=constraints),
            self.device,
            self._slabs,
            communicator,
            meeting,
            post=self.thread.submit,
            usage=partial(_pool_usage, self.device, self._cache),
            timeout_s=config.rank_timeout_s,
        )
        self._driven = leading
        self._start = partial(self.thread.start, leading)
        place = MeetingPlace(meeting, settings, config.rank_timeout_s, self.thread.submit)
        stack.callback(leading.close)
        stack.callback(constraints.close)
        stack.callback(packers.close)
        stack.callback(self.thread.stop)
        stack.callback(place.close)

    def _engine(
        self,
        device: Device,
        post: Callable[[Prepared], None],
        *,
        packers: Packers,
        constraints: Constraints,
        make_steps: MakeSteps = own_steps,
        peers: PeerLinks = ALONE,
    ) -> Engine:
        bring = partial(self._carry, self.thread.submit) if self._carry else None
        memory = MemoryManager(
            device,
            self._slabs,
            bring,
            prefix_caching=self._config.prefix_caching,
            lending=peers.lending,
            borrowing=peers.borrowing,
        )
        models = ModelTable(
            self.preparer,
            device,
            memory,
            packers,
            post,
            execution=self.execution,
            max_batch_sequences=self._config.max_batch_sequences,
            make_steps=make_steps,
        )
        return Engine(
            models,
            memory,
            partial(_usage, memory, self._slabs, self._cache, self.execution.recorder),
            constraints,
            execution=self.execution,
            max_batch_sequences=self._config.max_batch_sequences,
        )

    def _share(self, link: Link, *, communicator: Communicator) -> RankShare:
        return RankShare(
            self.device,
            self._slabs,
            self.preparer,
            link,
            communicator,
            self.execution.recorder,
            self._config.max_batch_sequences,
        )


def _device_request(config: WorkerConfig) -> DeviceRequest:
    return DeviceRequest(
        device=config.device,
        worker_index=config.worker_index,
        cpu_nbytes=config.device_memory_bytes,
        memory_utilization=config.memory_utilization,
        chunk_nbytes=config.device_chunk_bytes,
        lock_dir=config.shm_dir,
        lends=config.lends,
    )


def _usage(
    memory: MemoryManager, slabs: HostSlabs, cache: WeightCache, recorder: GraphRecorder | None
) -> MemoryUsage:
    device = memory.device_usage()
    return MemoryUsage(
        device_weight_bytes=device.weights,
        device_kv_bytes=device.kv,
        device_free_bytes=device.free,
        host_kv_bytes=len(slabs.owned) * slabs.slab_nbytes,
        weight_cache_bytes=cache.used_nbytes,
        sequences=memory.num_sequences,
        prefix=memory.prefix_use,
        device_graph_bytes=0 if recorder is None else recorder.nbytes,
    )


def _pool_usage(device: Device, cache: WeightCache) -> MemoryUsage:
    """Of a rank whose books another one keeps, or that has no engine yet."""
    pool = device.pool
    return MemoryUsage(0, 0, pool.free_nbytes, 0, cache.used_nbytes, 0, PrefixUse())
