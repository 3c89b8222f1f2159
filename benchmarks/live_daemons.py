"""Scheduler and workers with flags of a benchmark's choice, and a client attached to them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from aegaeon import LLMService
from aegaeon.local.child import STOP_GRACE_S, Child
from aegaeon.local.cluster import daemon_command
from benchmarks.service import NodeSizes

_READY_S = 60.0


@dataclass(frozen=True)
class Topology:
    """The workers of one node."""

    name: str
    roles: tuple[str, ...]


@contextmanager
def live_service(policy: str, topology: Topology, sizes: NodeSizes) -> Iterator[LLMService]:
    """A client of daemons that end with the block; each worker computes on one thread."""
    with ExitStack() as stack:
        # Short, because sockets lie in it.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="live")))
        listen = ["--listen", f"unix:{folder}/s"]
        _, scheduler = start_daemon(
            stack, "scheduler", folder, "aegaeon_scheduler", [*listen, "--policy", policy]
        )
        workers = [
            start_daemon(
                stack,
                f"w{index}",
                folder,
                "aegaeon_worker",
                worker_flags(f"unix:{folder}", scheduler, index, role, sizes),
            )
            for index, role in enumerate(topology.roles)
        ]
        service = stack.enter_context(LLMService(address=scheduler))
        # A worker that serves has yet to register.
        wait_for_workers(service, len(workers))
        yield service


def worker_flags(folder: str, scheduler: str, index: int, role: str, sizes: NodeSizes) -> list[str]:
    """Flags of a worker that listens in ``folder``, an address."""
    flags = {
        "--scheduler": scheduler,
        "--listen": f"{folder}/w{index}",
        "--node-id": "node_0",
        "--worker-index": index,
        "--role": role,
        # Named after the folder, so that two runs at once do not meet.
        "--instance": Path(folder.removeprefix("unix:")).name.replace("_", "-"),
        "--threads": 1,
        "--device": "cpu",
        "--cpu-num-slabs": sizes.cpu_num_slabs,
        "--cpu-slab-bytes": sizes.cpu_slab_bytes,
        "--model-cache-bytes": sizes.model_cache_bytes,
        "--device-memory-bytes": sizes.device_bytes,
    }
    return [str(part) for flag in flags.items() for part in flag]


def start_daemon(
    stack: ExitStack, name: str, folder: Path, module: str, flags: Sequence[str]
) -> tuple[Child, str]:
    """A daemon that ends with ``stack``, and its address, once it serves."""
    child = Child(name, [*daemon_command(module), *flags], folder / f"{name}.log")
    stack.callback(stop_daemon, child)
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        address = child.poll_ready(0.1)
        if address is not None:
            return child, address
    raise TimeoutError(f"{name} did not serve in {_READY_S:.0f} s:\n{child.log_tail()}")


def wait_for_workers(service: LLMService, count: int) -> None:
    """Return once so many are connected to the scheduler."""
    deadline = time.monotonic() + _READY_S
    while sum(worker.connected for worker in service.runtime().workers) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{count} workers did not connect in {_READY_S:.0f} s")
        time.sleep(0.05)


def stop_daemon(child: Child) -> None:
    """Return once it has ended; idempotent."""
    child.ask_to_stop()
    child.stop(time.monotonic() + STOP_GRACE_S)
