"""A whole service behind wires that can be cut."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import grpc

from aegaeon import LLMService
from aegaeon.model_spec import ModelSpec
from aegaeon.v1 import cluster_pb2, cluster_pb2_grpc, worker_pb2, worker_pb2_grpc
from tests.chaos.fleet import Fleet, Nursery
from tests.chaos.proxy import Wires
from tests.chaos.topology import MIB, Topology

#: Hung workers are found sooner than by default, so that a round need not wait for it.
LEASE_MS = 1_500
#: For what must come to rest once nothing is done to it any more.
REST_S = 60.0


class Cluster:
    """Daemons and wires of a topology; `address` is the scheduler's as clients know it."""

    def __init__(
        self,
        nursery: Nursery,
        topology: Topology,
        folder: Path,
        shm_dir: Path,
        gateway: bool,
        limits: Mapping[str, object],
    ) -> None:
        self.topology = topology
        self.folder = folder
        self.shm_dir = shm_dir
        self.wires = Wires()
        self.fleet = Fleet(nursery, folder)
        self.gateway = ""
        self._start_scheduler(limits)
        self.address = self.wires.add("clients", folder / "c", f"unix:{folder}/s").address
        self.wires.add("workers", folder / "r", f"unix:{folder}/s")
        for number, (node, index, role) in enumerate(topology.workers):
            self._start_worker(number, node, index, role)
        if gateway:
            flags = {"scheduler": self.address, "port": 0, "heartbeat_s": 0.5}
            self.gateway = self.fleet.start("gateway", "aegaeon.http", flags)

    @property
    def schedulers_own_address(self) -> str:
        return f"unix:{self.folder}/s"

    def gateway_address(self) -> str:
        """Another one after every restart."""
        return self.fleet.known_address("gateway") or self.gateway

    @property
    def worker_names(self) -> list[str]:
        return [name for name in self.fleet.daemons if name.startswith("worker")]

    def runtime(self) -> cluster_pb2.RuntimeSnapshot:
        with grpc.insecure_channel(self.schedulers_own_address) as channel:
            stub = cluster_pb2_grpc.ClusterServiceStub(channel)
            request = cluster_pb2.GetRuntimeRequest()
            return stub.GetRuntime(request, timeout=10, wait_for_ready=True).snapshot

    def memory(self, number: int) -> cluster_pb2.WorkerMemory:
        """What a worker says of itself."""
        with grpc.insecure_channel(f"unix:{self.folder}/w{number}") as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            return stub.GetStatus(
                worker_pb2.GetStatusRequest(), timeout=10, wait_for_ready=True
            ).memory

    def rest(self) -> None:
        """Wait until every worker is connected, every replica ready, and no request left anywhere;
        fails with what is not."""
        self.fleet.settle()
        deadline = time.monotonic() + REST_S
        while unrest := self._unrest():
            assert time.monotonic() < deadline, f"{unrest}\n{self.fleet.describe()}"
            time.sleep(0.02)

    def _unrest(self) -> list[str]:
        snapshot = self.runtime()
        found = []
        if snapshot.active_requests:
            found.append(f"{snapshot.active_requests} requests")
        registered = {(worker.node_id, worker.worker_index) for worker in snapshot.workers}
        for node, index, _ in self.topology.workers:
            if (node, index) not in registered:
                found.append(f"{node}/{index} is not registered")
        found += [f"{e.engine_id} is not ready" for e in snapshot.engines if not e.ready]
        for engine in snapshot.engines:
            if engine.sequences or engine.held_sequences:
                found.append(f"{engine.engine_id} has sequences")
        for model in snapshot.models:
            for replica in model.replicas:
                if replica.state != 3:
                    found.append(f"{model.spec.name} on {replica.node_id}: {replica}")
        return found or self._unrest_of_workers()

    def _unrest_of_workers(self) -> list[str]:
        found = []
        for number, (node, index, _) in enumerate(self.topology.workers):
            memory = self.memory(number)
            left = (memory.sequences, memory.device_kv_bytes, memory.host_kv_bytes)
            if any(left):
                found.append(f"{node}/{index} holds sequences, device and host KV: {left}")
        return found

    def close(self) -> list[str]:
        """Stop everything cleanly; whatever is wrong afterwards."""
        order = ["gateway"] if self.gateway else []
        problems = self.fleet.close([*order, *self.worker_names, "scheduler"])
        self.wires.close()
        problems += [f"left: {path}" for path in self.folder.iterdir() if path.is_socket()]
        problems += [f"left: {path}" for path in self.shm_dir.rglob("*")]
        for name in self.fleet.daemons:
            if "Traceback" in (log := self.fleet.log(name)):
                problems.append(f"{name} failed inside:\n{log[log.index('Traceback') :][:3000]}")
        return problems

    def _start_scheduler(self, limits: Mapping[str, object]) -> None:
        flags = {
            "listen": self.schedulers_own_address,
            "state_file": self.folder / "state.json",
            "lease_ttl_ms": LEASE_MS,
            "policy": self.topology.policy,
            "max_losses": 100,
            **limits,
        }
        self.fleet.start("scheduler", "aegaeon_scheduler", flags)

    def _start_worker(self, number: int, node: str, index: int, role: str) -> None:
        own = f"unix:{self.folder}/w{number}"
        wire = self.wires.add(f"commands {number}", self.folder / f"x{number}", own)
        flags = {
            "scheduler": self.wires.wires["workers"].address,
            "listen": own,
            "node_id": node,
            "worker_index": index,
            "role": role,
            "instance": f"{self.folder.name}-{node}",
            "shm_dir": self.shm_dir,
            "cpu_num_slabs": self.topology.num_slabs,
            "cpu_slab_bytes": 2 * MIB,
            "model_cache_bytes": 64 * MIB,
            "device_memory_bytes": self.topology.device_bytes,
            "threads": 1,
            "tensor_parallel_size": self.topology.ranks,
            "rank_timeout_s": 2,
        }
        self.fleet.start(f"worker {number}", "aegaeon_worker", flags, wire.address)


@contextmanager
def running_cluster(
    nursery: Nursery,
    topology: Topology,
    models: Sequence[ModelSpec],
    folder: Path,
    shm_dir: Path,
    *,
    gateway: bool = True,
    limits: Mapping[str, object] = MappingProxyType({}),
) -> Iterator[tuple[Cluster, LLMService]]:
    """A cluster with its models deployed, and a client that reaches it through a wire."""
    cluster = Cluster(nursery, topology, folder, shm_dir, gateway, limits)
    try:
        with LLMService(topology.node_configs(list(models)), address=cluster.address) as service:
            yield cluster, service
    finally:
        problems = cluster.close()
    assert not problems, "\n".join(problems)
