"""How much moved between host and device, and how long it took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Transfers:
    """Totals since the start; the difference of two is what happened between them."""

    weight_bytes: int = 0
    """Weights copied to the device."""
    weight_ns: int = 0
    """Time to map and copy them."""
    kv_bytes: int = 0
    """KV copied in either direction."""
    kv_ns: int = 0
    """Time to copy it."""

    def __add__(self, other: Transfers) -> Transfers:
        return Transfers(
            self.weight_bytes + other.weight_bytes,
            self.weight_ns + other.weight_ns,
            self.kv_bytes + other.kv_bytes,
            self.kv_ns + other.kv_ns,
        )

    def __sub__(self, other: Transfers) -> Transfers:
        return Transfers(
            self.weight_bytes - other.weight_bytes,
            self.weight_ns - other.weight_ns,
            self.kv_bytes - other.kv_bytes,
            self.kv_ns - other.kv_ns,
        )


class TransferMeter:
    """Adds up the transfers of all models of a device."""

    def __init__(self) -> None:
        self.total = Transfers()

    def add(self, transfers: Transfers) -> None:
        """Count something that has moved."""
        self.total = self.total + transfers
