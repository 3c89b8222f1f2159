"""Where one sequence's KV lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from aegaeon_worker.kv.arrival import Arrival
from aegaeon_worker.kv.place import HostBlock, KvPlace
from aegaeon_worker.kv.prefix_keys import PrefixKeys
from aegaeon_worker.kv.pull import Pull
from aegaeon_worker.kv.shape import BLOCK_TOKENS, KvShape
from aegaeon_worker.peers.lending import Offered


@dataclass
class SequenceKv:
    """KV of one sequence: on the device, in host memory, in both, or (without tokens) nowhere.

    KV only grows at its end, so the host copy is valid for a prefix of the tokens. KV that another
    worker left is a complete host copy in blocks that are not the sequence's own.
    """

    num_tokens: int = 0
    """Tokens whose KV is stored."""
    saved_tokens: int = 0
    """Leading tokens whose KV is in the host copy too; never more than ``num_tokens``."""
    device_blocks: list[int] = field(default_factory=list)
    """Block ids on the device, for all stored tokens and perhaps more; empty when swapped out."""
    host_blocks: list[HostBlock] = field(default_factory=list)
    foreign: KvPlace | None = None
    """Where another worker of the node left the KV, until it is on this device."""
    arrival: Arrival | None = None
    """KV of another node: on its way to ``host_blocks``, or there, until a turn first runs it."""
    pull: Pull | None = None
    """KV that comes from another worker's device, until a turn first runs it."""
    offered: Offered | None = None
    """Other workers may copy it from where that says."""
    published: bool = False
    """Other workers may read the host copy, and no copy to or from it is under way here."""
    keys: PrefixKeys | None = None
    """Names its full blocks; None if it shares none."""
    entered: int = 0
    """Leading blocks whose KV others may find by their keys."""
    reused_tokens: int = 0
    """Stored tokens that were found, and not computed for this sequence."""

    looked_up: bool = False
    """It has been counted among those that look for their tokens."""

    @property
    def comes(self) -> bool:
        """Its KV is still elsewhere, or on its way here."""
        return self.foreign is not None or self.arrival is not None or self.pull is not None

    @property
    def num_full(self) -> int:
        """Blocks that the stored tokens fill."""
        return self.num_tokens // BLOCK_TOKENS

    @property
    def resident(self) -> bool:
        """Whether the device holds the KV of all stored tokens."""
        return len(self.device_blocks) >= KvShape.blocks_for(self.num_tokens)

    def is_ready(self, num_tokens: int) -> bool:
        """Whether the device has all that is known of it, and room for ``num_tokens`` tokens."""
        room = len(self.device_blocks) * BLOCK_TOKENS
        known = self.keys is None or self.num_tokens // BLOCK_TOKENS >= self.keys.num_reusable
        return known and room >= num_tokens and room >= self.num_tokens and not self.comes

    @property
    def next_key(self) -> bytes | None:
        """Names the next block to compute, if others can use it as a part of their prompts."""
        if self.keys is None or self.num_full >= self.keys.num_reusable or self.comes:
            return None
        return None if self.num_tokens % BLOCK_TOKENS else self.keys[self.num_full]

    @property
    def clean(self) -> bool:
        """Whether the host copy is complete, so that the device copy may go without a copy."""
        return self.saved_tokens == self.num_tokens

    def missing_blocks(self, num_tokens: int) -> int:
        """Device blocks to take for ``num_tokens`` tokens, stored ones included."""
        return max(
            0, KvShape.blocks_for(max(num_tokens, self.num_tokens)) - len(self.device_blocks)
        )

    def dirty_blocks(self) -> range:
        """Indices of the blocks whose content the host copy lacks, the partly filled included."""
        if self.clean:
            return range(0)
        return range(self.saved_tokens // BLOCK_TOKENS, KvShape.blocks_for(self.num_tokens))

    def forget_tokens(self) -> None:
        """All of them are to be computed again; the blocks stay."""
        self.num_tokens = self.saved_tokens = self.entered = self.reused_tokens = 0
        self.foreign = None
        self.looked_up = False


@dataclass(frozen=True)
class CopyRun:
    """Blocks that are consecutive on both sides, so that they move in one copy."""

    device_block: int
    host_block: HostBlock
    count: int


def copy_runs(
    device: Sequence[int], host: Sequence[HostBlock], *, longest: int | None = None
) -> Iterator[CopyRun]:
    """Split two equally long block lists into maximal runs, of at most ``longest`` blocks."""
    start = 0
    for index in range(1, len(device) + 1):
        if index < len(device) and index - start != longest and _follows(device, host, index):
            continue
        yield CopyRun(device[start], host[start], index - start)
        start = index


def _follows(device: Sequence[int], host: Sequence[HostBlock], index: int) -> bool:
    before, here = host[index - 1], host[index]
    return (
        device[index] == device[index - 1] + 1
        and here.slab == before.slab
        and here.index == before.index + 1
    )
