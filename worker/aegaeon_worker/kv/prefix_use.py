"""How much of the KV that was needed had been computed before."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PrefixUse:
    """Totals since the start, and what is kept now."""

    queried_tokens: int = 0
    """Tokens of sequences that were looked up, once each time they had no KV."""
    reused_tokens: int = 0
    """Of those, the ones whose KV was found."""
    device_bytes: int = 0
    """Blocks on the device that are kept though no sequence needs them."""
    host_bytes: int = 0
    """The same in host memory."""

    def __add__(self, other: PrefixUse) -> PrefixUse:
        return PrefixUse(
            self.queried_tokens + other.queried_tokens,
            self.reused_tokens + other.reused_tokens,
            self.device_bytes + other.device_bytes,
            self.host_bytes + other.host_bytes,
        )


@dataclass(frozen=True)
class Reused:
    """How many of a sequence's stored tokens were found, and not computed for it."""

    sequence: int
    num_tokens: int
