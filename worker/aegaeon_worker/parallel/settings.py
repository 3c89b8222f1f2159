"""What the ranks of an engine must agree on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class GroupSettings:
    """Each rank says hello with its own; sizes in bytes."""

    size: int
    """Ranks of the engine."""
    device: str
    chunk_nbytes: int
    num_slabs: int
    slab_nbytes: int
    max_chunks: int
    """Chunks of the device pool: the group offers as many as its smallest rank has."""

    def fields(self) -> dict[str, Any]:
        """For a frame."""
        return asdict(self)

    def difference(self, other: GroupSettings) -> str:
        """What differs that must not; empty if the two can be ranks of one engine."""
        mine, theirs = asdict(self), asdict(other)
        return ", ".join(
            f"{name} is {theirs[name]}, but rank 0 has {mine[name]}"
            for name in mine
            if name != "max_chunks" and mine[name] != theirs[name]
        )
