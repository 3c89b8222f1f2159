"""Which daemons a cluster consists of."""

from __future__ import annotations

import random
from dataclasses import dataclass

from aegaeon import NodeConfig
from aegaeon.model_spec import ModelSpec

MIB = 1 << 20


@dataclass(frozen=True)
class Topology:
    """Roles of the workers of each node, and what the devices hold."""

    nodes: tuple[tuple[str, ...], ...]
    #: Device pool in bytes: weights and KV of one tiny model take two chunks of 32 MiB.
    device_bytes: int
    num_slabs: int
    policy: str
    #: Workers of one engine.
    ranks: int = 1

    @property
    def workers(self) -> list[tuple[str, int, str]]:
        """Node, index and role of every worker."""
        return [
            (f"node_{number}", index * self.ranks + rank, role)
            for number, roles in enumerate(self.nodes)
            for index, role in enumerate(roles)
            for rank in range(self.ranks)
        ]

    def node_configs(self, models: list[ModelSpec]) -> list[NodeConfig]:
        """As clients declare it; every node has every model."""
        return [
            NodeConfig(
                node_id=f"node_{number}",
                num_prefill_engines=roles.count("prefill"),
                num_decode_engines=roles.count("decode"),
                num_engines=roles.count("simple"),
                tensor_parallel_size=self.ranks,
                cached_models=models,
            )
            for number, roles in enumerate(self.nodes)
        ]

    def __str__(self) -> str:
        nodes = " + ".join(",".join(roles) for roles in self.nodes)
        ranks = f" of {self.ranks} ranks" if self.ranks > 1 else ""
        sizes = f"{self.device_bytes // MIB} MiB; {self.num_slabs} slabs"
        return f"{nodes}{ranks}; {sizes}; {self.policy}"


def quiet(ranks: int) -> Topology:
    """Where nothing happens. Sums over ranks may differ in the last place from those of one."""
    return Topology((("simple",),), 192 * MIB, 8, "deadline", ranks)


_NODES = (
    (("simple",),),
    (("simple", "simple"),),
    (("simple",), ("simple",)),
    (("prefill", "decode"),),
    (("prefill", "decode", "decode"),),
    (("prefill", "decode"), ("simple",)),
)


def draw(chance: random.Random) -> Topology:
    nodes = chance.choice(_NODES)
    device_bytes = chance.choice((64, 64, 128, 192)) * MIB
    num_slabs = chance.choice((2, 4, 8))
    policy = chance.choice(("deadline", "deadline", "round-robin", "published"))
    ranks = 2 if nodes in _NODES[:3] and chance.random() < 0.4 else 1
    return Topology(nodes, device_bytes, num_slabs, policy, ranks)
