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

    @property
    def workers(self) -> list[tuple[str, int, str]]:
        """Node, index and role of every worker."""
        return [
            (f"node_{number}", index, role)
            for number, roles in enumerate(self.nodes)
            for index, role in enumerate(roles)
        ]

    def node_configs(self, models: list[ModelSpec]) -> list[NodeConfig]:
        """As clients declare it; every node has every model."""
        return [
            NodeConfig(
                node_id=f"node_{number}",
                num_prefill_engines=roles.count("prefill"),
                num_decode_engines=roles.count("decode"),
                num_engines=roles.count("simple"),
                cached_models=models,
            )
            for number, roles in enumerate(self.nodes)
        ]

    def __str__(self) -> str:
        nodes = " + ".join(",".join(roles) for roles in self.nodes)
        return f"{nodes}; {self.device_bytes // MIB} MiB; {self.num_slabs} slabs; {self.policy}"


QUIET = Topology((("simple",),), 192 * MIB, 8, "deadline")
_NODES = (
    (("simple",),),
    (("simple", "simple"),),
    (("simple",), ("simple",)),
    (("prefill", "decode"),),
    (("prefill", "decode", "decode"),),
    (("prefill", "decode"), ("simple",)),
)


def draw(chance: random.Random) -> Topology:
    return Topology(
        chance.choice(_NODES),
        chance.choice((64, 64, 128, 192)) * MIB,
        chance.choice((2, 4, 8)),
        chance.choice(("deadline", "deadline", "round-robin", "published")),
    )
