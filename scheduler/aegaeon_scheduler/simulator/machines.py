"""The machines that a simulation runs on, and which model is served under which name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

from aegaeon.capability import OF_WORKER
from aegaeon_scheduler.core.values import DeviceFacts, NodeMemory, WorkerIdentity
from aegaeon_scheduler.simulator.catalog import Device, ModelShape
from aegaeon_scheduler.simulator.errors import InputError
from aegaeon_scheduler.simulator.memory import DevicePool
from aegaeon_scheduler.simulator.worker import SimulatedWorker
from aegaeon_scheduler.simulator.workload import Arrival

#: Host memory is not what limits these experiments.
_HOST = NodeMemory(cpu_num_slabs=1, cpu_slab_bytes=1, weight_cache_bytes=1 << 50)
_CHUNK_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Machines:
    """Equal nodes of equal engines."""

    device: Device
    shapes: dict[str, ModelShape]
    nodes: int = 2
    engines_per_node: int = 8
    max_batch_sequences: int = 256

    def __post_init__(self) -> None:
        for name in ("nodes", "engines_per_node", "max_batch_sequences"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")

    def workers(self) -> list[SimulatedWorker]:
        """Fresh engines, by epoch from 1; those of a node follow each other."""
        return [
            SimulatedWorker(identity.worker_index, identity, self.shapes, DevicePool(self.device))
            for identity in self._identities()
        ]

    def node_of(self, epoch: int) -> int:
        """Index of the node of an engine."""
        return (epoch - 1) // self.engines_per_node

    def _identities(self) -> Iterator[WorkerIdentity]:
        device = self.device
        facts = DeviceFacts("simulated", device.name, device.pool_bytes, _CHUNK_BYTES)
        for index in range(self.nodes * self.engines_per_node):
            yield WorkerIdentity(
                f"node-{index // self.engines_per_node}",
                index + 1,
                "simulated",
                facts,
                _HOST,
                self.max_batch_sequences,
                capabilities=OF_WORKER,
            )


def assign_shapes(arrivals: Iterable[Arrival], shapes: Items[ModelShape]) -> dict[str, ModelShape]:
    """Every model of a workload, in order of their names, gets the next of the shapes in turn."""
    names = sorted({arrival.model for arrival in arrivals}, key=_natural)
    return {
        name: replace(shapes[index % len(shapes)], name=name) for index, name in enumerate(names)
    }


def _natural(name: str) -> tuple[str, int]:
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or -1)
