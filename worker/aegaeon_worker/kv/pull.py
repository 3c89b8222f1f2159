"""KV on another worker's device, while it is copied to this one."""

from __future__ import annotations

from aegaeon_worker.device.interface import CopyMark
from aegaeon_worker.device.sharing import DeviceSharing
from aegaeon_worker.kv.place import KvPlace


class Pull:
    """One sequence's KV that comes from device to device, until a turn first runs the sequence."""

    def __init__(self, sequence: int, place: KvPlace, start_ns: int) -> None:
        self.sequence = sequence
        self.offer = place.offer
        self.num_tokens = place.num_tokens
        self.start_ns = start_ns
        self.landed = False
        """All of it is in the sequence's own blocks."""
        self.refusal = ""
        """Why it comes another way, or not at all."""
        self.over = False
        """Nobody waits for it any more."""
        self._copying: tuple[DeviceSharing, CopyMark] | None = None

    @property
    def copying(self) -> bool:
        """Its blocks are being written."""
        return self._copying is not None

    @property
    def copied(self) -> bool:
        """Whether a copy under way is complete; never blocks."""
        return self._copying is not None and self._copying[1].done

    def begin(self, sharing: DeviceSharing, mark: CopyMark) -> None:
        """A copy is under way, up to ``mark``."""
        self._copying = sharing, mark

    def end(self) -> None:
        """The copy is complete."""
        self._copying = None

    def stop(self, reason: str) -> None:
        """Its blocks are about to be used for something else: wait until nothing writes them."""
        if self._copying is not None:
            self._copying[0].synchronize()
            self._copying = None
            self.refusal = reason
