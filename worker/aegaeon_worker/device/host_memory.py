"""Tensors over raw addresses."""

from __future__ import annotations

import ctypes

import torch


def dense_nbytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    """Bytes of a dense tensor."""
    count = dtype.itemsize
    for size in shape:
        count *= size
    return count


def tensor_at(address: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A dense CPU tensor over memory that the caller keeps mapped while it is touched."""
    nbytes = dense_nbytes(dtype, shape)
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    buffer = (ctypes.c_char * nbytes).from_address(address)
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


def byte_view(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor as uint8 [nbytes], without a copy."""
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of strides {tensor.stride()} is not contiguous")
    return tensor.detach().reshape(-1).view(torch.uint8)
