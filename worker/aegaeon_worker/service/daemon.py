"""One worker process from start to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from typing import Any

from aegaeon.capability import OF_WORKER
from aegaeon.errors import AegaeonError
from aegaeon.rpc.address import bind
from aegaeon.rpc.channel import make_server
from aegaeon.rpc.daemon import StopSignal, announce_ready, leave
from aegaeon.rpc.health import Health
from aegaeon.rpc.needs import contract_names
from aegaeon.rpc.notify import keep_watchdog, notify
from aegaeon.rpc.version import CONTRACT_VERSION
from aegaeon.tracing import Tracing
from aegaeon.v1 import cluster_pb2, kv_pb2_grpc, worker_pb2_grpc
from aegaeon_worker.config import WorkerConfig
from aegaeon_worker.device.calibration import DeviceSpeed, measure_speed
from aegaeon_worker.device.choice import default_dtype
from aegaeon_worker.engine.assembly import WorkerParts
from aegaeon_worker.passing_thread import on_passing_thread
from aegaeon_worker.service import convert
from aegaeon_worker.service.interpreter import end_start
from aegaeon_worker.service.kv_service import KvServicer
from aegaeon_worker.service.kv_wire import KvWire
from aegaeon_worker.service.measuring import Measuring
from aegaeon_worker.service.registration import Registration
from aegaeon_worker.service.sequence_spans import SequenceSpans
from aegaeon_worker.service.servicer import WorkerServicer
from aegaeon_worker.service.stuck import EngineStuckError, stuck_limit_s, wait_stuck

logger = logging.getLogger(__name__)

_SERVICES = ("aegaeon.v1.WorkerService", "aegaeon.v1.KvService")
#: Calls under way get this long to end once the process was asked to stop, in seconds.
_STOP_GRACE_S = 2.0


async def serve(config: WorkerConfig) -> None:
    """Serve until asked to stop, then give every byte and file back.

    Raises what made it stop early: a scheduler that refuses this worker, or a broken engine.
    """
    stop = StopSignal()
    # Building takes memory and reads files: on a thread, so that the loop answers signals.
    wire = KvWire(config.security)
    parts = await on_passing_thread(WorkerParts, config, wire.carry)
    try:
        # Before the engine runs, which it would disturb and be disturbed by.
        device = parts.device
        speed = await on_passing_thread(measure_speed, device.torch_device, default_dtype(device))
        await _serve_parts(config, parts, speed, stop)
    except EngineStuckError as error:
        # What gives memory back in order would wait for the thread for ever; the kernel does not.
        logger.critical("%s", error)
        leave(1)
    finally:
        notify("STOPPING=1")
        await wire.close()
        await on_passing_thread(parts.close)


async def _serve_parts(
    config: WorkerConfig, parts: WorkerParts, speed: DeviceSpeed, stop: StopSignal
) -> None:
    server = make_server(config.security)
    measuring = None if config.metrics_listen is None else await Measuring.start(config, parts)
    metrics = None if measuring is None else measuring.metrics
    tracing = Tracing.from_environment("aegaeon-worker")
    name = f"{config.node_id}/{config.worker_index}"
    spans = None if tracing is None else SequenceSpans(tracing, name)
    submit = None if config.ranks.rank else parts.thread.submit
    servicer = WorkerServicer(lambda: parts.status, submit, parts.preparer, metrics, spans)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server)
    kv_pb2_grpc.add_KvServiceServicer_to_server(KvServicer(parts.slab_reader, parts.peers), server)
    health = Health(server, _SERVICES)
    address = bind(
        server, config.listen, insecure_bind=config.insecure_bind, settings=config.security
    )
    await server.start()
    await health.set_serving(True)
    parts.start()
    request = _registration_request(config, parts, speed, address)
    registration = Registration(
        config.scheduler, request, config.security, config.scheduler_timeout_s
    )
    servicer.on_stream_end = registration.look_now
    end_start()
    announce_ready(address, config.ready_fd)
    logger.info("serving on %s", address)
    watchdog = asyncio.create_task(keep_watchdog())
    try:
        await _wait_for_end(config, parts, registration, stop)
    finally:
        watchdog.cancel()
        # Order: no new work (health), the scheduler moves our sequences (deregister), calls end,
        # the engine stops at its next token boundary.
        await health.set_serving(False)
        await registration.close()
        servicer.close_streams()
        await server.stop(_STOP_GRACE_S)
        if measuring is not None:
            await measuring.close()
        if tracing is not None:
            tracing.close()


async def _wait_for_end(
    config: WorkerConfig, parts: WorkerParts, registration: Registration, stop: StopSignal
) -> None:
    """Return when asked to stop; raise when the worker is of no more use."""
    stopped = asyncio.create_task(stop.wait())
    refused = asyncio.create_task(registration.wait_refused())
    broken = asyncio.create_task(parts.wait_broken())
    waits: list[asyncio.Task[Any]] = [stopped, refused, broken]
    limit_s = stuck_limit_s(config.engine_timeout_s, parts.device.torch_device)
    if limit_s and not config.ranks.rank:
        waits.append(asyncio.create_task(wait_stuck(parts.thread.answer, limit_s)))
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in waits:
        task.cancel()
    if refused.done():
        raise refused.result()
    if broken.done():
        raise AegaeonError(f"the engine broke: {broken.result()!r}; see the log above")
    if not stopped.done():
        raise waits[-1].result()


def _registration_request(
    config: WorkerConfig, parts: WorkerParts, speed: DeviceSpeed, address: str
) -> cluster_pb2.RegisterWorkerRequest:
    return cluster_pb2.RegisterWorkerRequest(
        contract_version=CONTRACT_VERSION,
        node_id=config.node_id,
        worker_index=config.worker_index,
        address=address,
        device=cluster_pb2.DeviceFacts(
            kind=parts.device.torch_device.type,
            name=parts.device.name,
            pool_bytes=parts.device.pool.nbytes,
            chunk_bytes=parts.device.pool.chunk_nbytes,
            memory_bytes_per_s=speed.memory_bytes_per_s,
            host_link_bytes_per_s=speed.host_link_bytes_per_s,
            flops_per_s=speed.flops_per_s,
        ),
        memory=cluster_pb2.NodeMemory(
            cpu_num_slabs=config.cpu_num_slabs,
            cpu_slab_bytes=config.cpu_slab_bytes,
            weight_cache_bytes=config.model_cache_bytes,
        ),
        incarnation=uuid.uuid4().hex,
        pid=os.getpid(),
        max_batch_sequences=config.max_batch_sequences,
        role=convert.ROLES[config.role],
        # Schedulers of before tensor parallelism may register whoever does without.
        tensor_parallel_size=config.tensor_parallel_size if config.tensor_parallel_size > 1 else 0,
        capabilities=contract_names(OF_WORKER),
        kv_sharing=cluster_pb2.KvSharing(
            device=parts.peers.device,
            readable=sorted(parts.peers.readable),
            obstacle=parts.peers.obstacle,
        ),
    )
