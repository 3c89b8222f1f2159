"""Small tensors to and from a device, without waiting for what it has to do before."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def upload(
    values: Sequence[float] | Sequence[Sequence[int]] | torch.Tensor,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``values`` on ``device``, there before whatever is queued from now on."""
    tensor = values if isinstance(values, torch.Tensor) else torch.tensor(values, dtype=dtype)
    if device.type == "cpu":
        return tensor
    # From pageable memory, a copy of some size waits for the device.
    return tensor.pin_memory().to(device, non_blocking=True)


def write(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a tensor of the host to ``target``, there before whatever is queued from now on."""
    target.copy_(source.pin_memory() if target.is_cuda else source, non_blocking=True)


class Download:
    """Copies of tensors on their way to the host."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Queue the copies behind everything queued so far; the tensors may change afterwards."""
        pinned = any(tensor.is_cuda for tensor in tensors)
        self._copies = [
            torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned) for tensor in tensors
        ]
        for target, source in zip(self._copies, tensors, strict=True):
            target.copy_(source, non_blocking=True)
        self._copied: torch.cuda.Event | None = None
        if pinned:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def wait(self) -> list[torch.Tensor]:
        """Block until they are on the host."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._copies
