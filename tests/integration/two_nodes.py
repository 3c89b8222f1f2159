"""A node of one prefill engine and one of decode engines, with shared memory of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aegaeon import LLMService
from aegaeon.model_spec import ModelSpec
from aegaeon.v1 import cluster_pb2
from tests.integration.daemons import Daemon, Daemons, running_daemons
from tests.integration.models import tiny_model
from tests.integration.network import Network
from tests.integration.workload import MIB, tiny_node

#: A worker's lease, in seconds: longer than a test stops one.
LEASE_S = 60
#: Sizes of a worker and its node.
SIZES: Mapping[str, int] = {
    "cpu_num_slabs": 12,
    "cpu_slab_bytes": 16 * MIB,
    "model_cache_bytes": 64 * MIB,
    "device_memory_bytes": 320 * MIB,
}


def wide_model(name: str, folder: Path, seed: int = 0) -> ModelSpec:
    """Quick to run, with 32 KiB of KV per token: hand-offs of it take a while."""
    shape = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128}
    return tiny_model(name, "llama", folder, seed=seed, num_hidden_layers=4, **shape)


@dataclass
class TwoNodes:
    """Running daemons; ``workers`` by engine id."""

    daemons: Daemons
    scheduler: Daemon
    models: Sequence[ModelSpec]
    shm_dirs: Mapping[str, Path]
    network: Network | None = None
    workers: dict[str, Daemon] = field(default_factory=dict)

    def start(self, engine: str, role: str, **flags: object) -> Daemon:
        """A worker; also one in place of another that has ended."""
        node, _, index = engine.partition("/")
        self.workers[engine] = self.daemons.worker(
            self.scheduler.address,
            prefix=self.network.command(node) if self.network else (),
            listen=f"{self.network.host(node)}:0" if self.network else "127.0.0.1:0",
            insecure_bind=True,
            node_id=node,
            worker_index=index,
            role=role,
            shm_dir=self.shm_dirs[node],
            **SIZES,
            **flags,
        )
        return self.workers[engine]

    def service(
        self, decode_engines: int, *, stealing: bool = False, ranks: tuple[int, int] = (1, 1)
    ) -> LLMService:
        """Attached, with all models on both nodes; ``ranks`` of their engines."""
        engines = {"a": (1, 0, ranks[0]), "b": (0, decode_engines, ranks[1])}
        nodes = [
            tiny_node(
                self.models,
                node_id=node,
                num_engines=0,
                num_prefill_engines=prefill,
                num_decode_engines=decode,
                tensor_parallel_size=size,
                cpu_num_slabs=None,
                cpu_slab_size_bytes=None,
                model_cache_size=None,
                device_memory_bytes=None,
            )
            for node, (prefill, decode, size) in engines.items()
        ]
        address = self.scheduler.address
        return LLMService(nodes, address=address, decode_work_stealing=stealing)


@contextmanager
def two_nodes(
    folder: Path,
    shm_dir: Path,
    models: Sequence[ModelSpec],
    policy: str = "deadline",
    network: Network | None = None,
) -> Iterator[TwoNodes]:
    """A scheduler, and two nodes whose shared memory, and perhaps network, is not the same."""
    with (
        tempfile.TemporaryDirectory(dir=shm_dir) as a,
        tempfile.TemporaryDirectory(dir=shm_dir) as b,
    ):
        with running_daemons(folder, shm_dir) as daemons:
            # A socket file is reached from every network.
            listen = "" if network else "127.0.0.1:0"
            scheduler = daemons.scheduler(listen, policy=policy, lease_ttl_ms=LEASE_S * 1000)
            shm_dirs = {"a": Path(a), "b": Path(b)}
            yield TwoNodes(daemons, scheduler, models, shm_dirs, network)
        left = sorted(str(path) for name in (a, b) for path in Path(name).rglob("*"))
    assert left == []


def wire(service: LLMService) -> cluster_pb2.KvLink:
    """What has gone from one node to the other."""
    links = [
        link
        for link in service.runtime().kv_links
        if link.transport == cluster_pb2.KV_TRANSPORT_WIRE
    ]
    return links[0] if links else cluster_pb2.KvLink()
