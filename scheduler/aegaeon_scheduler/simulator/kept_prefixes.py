"""KV that a simulated device keeps of prompts and answers, for others that begin alike."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from aegaeon_scheduler.core.prefix_chain import PrefixChain


@dataclass(slots=True, eq=False)
class KeptPrefixes:
    """Blocks by name with their bytes; what nobody has used for longest leaves first.

    They have the room that weights and running sequences leave. What sequences share counts for
    each of them, so this device has less room than a real one.
    """

    _blocks: OrderedDict[int, int] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def keep(self, chain: PrefixChain, tokens: int, token_bytes: int, room: int) -> None:
        """The full blocks of a chain's first tokens have been computed, or used; the last ones of
        them leave before the first.
        """
        size = chain.block_tokens * token_bytes
        for name in reversed(chain.names[: tokens // chain.block_tokens]):
            if name not in self._blocks:
                self._blocks[name] = size
                self._bytes += size
            self._blocks.move_to_end(name)
        self._trim(room)

    def find(self, chain: PrefixChain, first: int, room: int) -> int:
        """How many of a chain's tokens are there from token ``first`` on, which begins a block."""
        self._trim(room)
        count = 0
        for name in chain.names[first // chain.block_tokens :]:
            if name not in self._blocks:
                break
            count += 1
        return count * chain.block_tokens

    def _trim(self, room: int) -> None:
        while self._bytes > max(room, 0):
            self._bytes -= self._blocks.popitem(last=False)[1]
