"""Everything that one worker process is told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from aegaeon.security.model_rules import ModelRules
from aegaeon.security.settings import PLAIN, SecuritySettings
from aegaeon_worker.parallel.ranks import Ranks


@dataclass(frozen=True)
class WorkerConfig:
    """Frozen at start; sizes in bytes."""

    scheduler: str
    """Where to register: ``host:port`` or ``unix:path``."""
    listen: str
    """Where to serve: ``host:port`` (port 0 picks one) or ``unix:path``."""
    node_id: str
    """The machine's name; all workers of one machine share it."""
    worker_index: int
    """Which worker of the node, from 0; stable across restarts."""
    instance: str
    """Isolates shared memory: workers of one node and service share it, others never do."""
    shm_dir: Path
    """Where shared-memory files live."""
    cpu_num_slabs: int
    """Host KV slabs of the node."""
    cpu_slab_bytes: int
    """Size of a slab."""
    model_cache_bytes: int
    """Budget of the node's weight cache."""
    device_memory_bytes: int
    """Pool for weights and KV together where the device is host memory."""
    role: str = "simple"
    """What the scheduler is to use the engine for: ``simple``, ``prefill`` or ``decode``. Here it
    decides alone whether others may read the device: a prefill worker lends its memory."""
    device: str = "auto"
    """``cpu``, ``cuda:<index>``, or ``auto``: ``cuda:<worker_index>`` if there is any, else CPU."""
    memory_utilization: float = 0.775
    """Share of a GPU's free memory, at the start, that becomes its pool; above 0, at most 1. The
    rest is left to activations, kernels and captured graphs."""
    device_chunk_bytes: int = 0
    """Chunk of the device pool, a multiple of 2 MiB; 0 is 32 MiB on CPUs and 64 MiB on GPUs."""
    tensor_parallel_size: int = 1
    """Workers of the node that are one engine together: those of indexes 0 to N - 1, and so on."""
    rank_timeout_s: float = 20.0
    """An engine gives a rank up that has not been heard for this long while it is waited for."""
    threads: int = 0
    """Compute threads on the CPU; 0 lets torch choose."""
    max_batch_sequences: int = 256
    """Sequences that run together at most."""
    prefix_caching: bool = True
    """Sequences share the KV of common prefixes, unless their model or they themselves do not."""
    keep_weights: bool = False
    """A clean stop leaves the weight cache for the next start."""
    engine_timeout_s: float | None = None
    """An engine that is stuck in one step for so long ends the worker; 0 is never, None is 120 on
    GPUs and never on CPUs."""
    scheduler_timeout_s: float = 600.0
    """Without an answer of the scheduler for so long the worker ends, and with it its caches."""
    insecure_bind: bool = False
    """Allow an address that other machines can reach without TLS, or without asking who calls."""
    security: SecuritySettings = PLAIN
    """Certificates, the keys that are accepted, and the one that is shown to the scheduler."""
    model_rules: ModelRules = field(default_factory=ModelRules)
    """Which checkpoints may be read, and whether their code may run."""
    metrics_listen: str | None = None
    """Where Prometheus metrics are served, ``host:port`` or ``unix:path``; None: nowhere."""
    lifeline_fd: int | None = None
    """Stop when this pipe closes, see `aegaeon.rpc.lifeline`."""
    lifeline_folder: Path | None = None
    """Remove this folder when that was the reason to stop."""
    ready_fd: int | None = None
    """Write one JSON line with the bound address here when serving, then close it."""

    @property
    def lends(self) -> bool:
        """Whether other workers of the node may read KV on this one's device."""
        return self.role == "prefill" and self.tensor_parallel_size == 1

    @property
    def ranks(self) -> Ranks:
        """This worker's rank in its engine."""
        return Ranks.of_worker(self.worker_index, self.tensor_parallel_size)
