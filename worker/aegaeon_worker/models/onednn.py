"""oneDNN's products on CPUs, and its own order of memory for their weights.

A weight in that order is an opaque tensor, which torch makes in memory of its own. Here it is laid
over memory that belongs to a model's range instead, so that packed weights are switched like plain
ones: torch's stable C interface takes an address and the format, as compiled models use it.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812

#: Formats are chosen for a number of rows; from 8 on it is one and the same, good for any number.
_ROWS = 8
_INT64 = ctypes.c_int64
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))
#: oneDNN keeps a kernel of up to a megabyte for each shape and number of rows that it has met, so
#: only these occur.
_ROW_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def onednn_product(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``rows`` [M, K] by ``weight`` [N, K], plain or packed, as [M, N]."""
    if rows.shape[0] > _ROW_COUNTS[-1]:
        parts = torch.split(rows, _ROW_COUNTS[-1])
        return torch.cat([_padded_product(part, weight) for part in parts])
    return _padded_product(rows, weight)


def _padded_product(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    count = rows.shape[0]
    padding = _ROW_COUNTS[bisect_left(_ROW_COUNTS, count)] - count
    if padding:
        rows = F.pad(rows, (0, 0, 0, padding))
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")
    return out[:count]


def onednn_available() -> bool:
    """Whether this torch has the private product, and it takes a plain weight."""
    try:
        onednn_product(torch.ones(1, 2), torch.ones(2, 2))
    except (AttributeError, RuntimeError, TypeError):
        return False
    return True


@dataclass(frozen=True)
class OneDnnFormat:
    """The order of one shape's bytes on this machine, as many as the plain weight has."""

    shape: tuple[int, int]
    descriptor: bytes
    """oneDNN's serialized memory descriptor."""

    @property
    def tag(self) -> bytes:
        """Differs where packed bytes mean something else."""
        return torch.__version__.encode() + self.descriptor

    def pack(self, weight: torch.Tensor) -> None:
        """Rewrite a contiguous float32 ``weight`` [N, K] in this order, in its place."""
        packed = _reorder(weight)
        ctypes.memmove(weight.data_ptr(), torch.ops.mkldnn.data_ptr(packed), weight.nbytes)

    def over(self, weight: torch.Tensor) -> torch.Tensor:
        """The packed weight at the address of ``weight``, whose memory must outlive it."""
        return _opaque(weight.data_ptr(), self.shape, self.descriptor)


@lru_cache(maxsize=256)
def onednn_format(shape: tuple[int, int]) -> OneDnnFormat | None:
    """The format for float32 weights of ``shape`` [N, K].

    None if torch cannot lay a packed weight over given memory, or if the order has padding.
    """
    plain = torch.zeros(1).expand(shape)
    try:
        packed = _reorder(plain)
        descriptor = bytes(torch.ops.mkldnn._get_mkldnn_serialized_md(packed).numpy())
        found = OneDnnFormat(shape, descriptor)
        if torch.ops.mkldnn._nbytes(packed) != plain.numel() * plain.itemsize:
            return None
        _opaque(torch.ops.mkldnn.data_ptr(packed), shape, descriptor)
    except (AttributeError, RuntimeError, TypeError, OSError):
        # Private parts of torch, which a release may rename: then weights stay plain.
        return None
    return found


def _reorder(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    return packed


def _opaque(address: int, shape: Sequence[int], descriptor: bytes) -> torch.Tensor:
    library = _library()
    handle = ctypes.c_void_p()
    status = library.aoti_torch_create_tensor_from_blob_v2(
        ctypes.c_void_p(address),
        _INT64(len(shape)),
        (_INT64 * 2)(*shape),
        (_INT64 * 2)(shape[1], 1),
        _INT64(0),
        library.aoti_torch_dtype_float32(),
        library.aoti_torch_device_type_cpu(),
        0,
        ctypes.byref(handle),
        library.aoti_torch_layout__mkldnn(),
        descriptor,
        _INT64(len(descriptor)),
    )
    if status:
        raise RuntimeError(f"torch refuses a packed weight of shape {tuple(shape)}")
    capsule = _new_capsule(handle, None, None)
    tensor: torch.Tensor = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule)
    return tensor


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
