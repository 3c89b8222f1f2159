"""Safetensors checkpoints on disk: which tensors they hold and where, from headers alone."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from aegaeon_worker.models.errors import ModelLoadError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

#: The format's own limit for a header; anything larger is not a safetensors file.
_MAX_HEADER_NBYTES = 100_000_000

_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "I64": torch.int64,
        "I32": torch.int32,
        "I16": torch.int16,
        "I8": torch.int8,
        "U8": torch.uint8,
        "BOOL": torch.bool,
    }
)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as its file's header describes it."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]


class TensorReader(Protocol):
    """Reads a tensor of the checkpoint by name, on the CPU, in the dtype it is stored in."""

    def __call__(self, name: str) -> torch.Tensor:
        """Raise ``ModelLoadError`` when the file has changed or cannot be read."""


@dataclass(frozen=True)
class Checkpoint:
    """The weight files of one model folder, checked but not read."""

    path: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, StoredTensor]
    digest: str
    """Changes when any weight file's name, size, modification time or header changes."""

    @classmethod
    def scan(cls, path: Path) -> Checkpoint:
        """Read the headers below ``path``; raise ``ModelLoadError`` for a broken file."""
        files, expected = _weight_files(path)
        tensors: dict[str, StoredTensor] = {}
        digest = hashlib.sha256()
        for file in files:
            header, identity = _read_header(file)
            digest.update(identity)
            for name, tensor in _parse_header(file, header).items():
                if name in tensors:
                    raise ModelLoadError(
                        file, f"tensor {name!r} is also stored in {tensors[name].file.name}"
                    )
                tensors[name] = tensor
        for name, file in expected.items():
            if name not in tensors or tensors[name].file != file:
                raise ModelLoadError(
                    path / INDEX_FILE,
                    f"tensor {name!r} is not in {file.name}, where the index puts it",
                )
        return cls(path, files, tensors, digest.hexdigest())

    @contextmanager
    def reader(self) -> Iterator[TensorReader]:
        """Open every file once for the time of the context."""
        with ExitStack() as stack:
            handles: dict[Path, Any] = {}

            def read(name: str) -> torch.Tensor:
                file = self.tensors[name].file
                try:
                    if file not in handles:
                        handles[file] = stack.enter_context(safe_open(file, framework="pt"))
                    tensor: torch.Tensor = handles[file].get_tensor(name)
                except (SafetensorError, OSError) as error:
                    raise ModelLoadError(file, f"cannot read tensor {name!r}: {error}") from error
                return tensor

            yield read


def _weight_files(path: Path) -> tuple[tuple[Path, ...], dict[str, Path]]:
    """The files to read, and where an index says each tensor lies."""
    if (path / SINGLE_FILE).exists():
        return (path / SINGLE_FILE,), {}
    index = path / INDEX_FILE
    if not index.exists():
        others = sorted(
            file.name for file in path.iterdir() if file.suffix in {".bin", ".pt", ".pth"}
        )
        found = f"; {others[0]} is in a pickle format, which is never loaded" if others else ""
        raise ModelLoadError(path, f"no {SINGLE_FILE} and no {INDEX_FILE}{found}")
    expected = {name: path / file for name, file in _read_index(index).items()}
    files = tuple(sorted(set(expected.values())))
    if not files:
        raise ModelLoadError(index, "names no weight file")
    for file in files:
        try:
            there = file.is_file()
        except OSError as error:  # such as a name that is too long
            raise ModelLoadError(index, f"names a file that cannot be: {error}") from error
        if not there:
            raise ModelLoadError(file, f"missing, although {INDEX_FILE} names it")
    return files, expected


def _read_index(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelLoadError(index, f"not a safetensors index: {error!r}") from error
    if not isinstance(weight_map, dict):
        raise ModelLoadError(index, "not a safetensors index: weight_map is not an object")
    for name, file in weight_map.items():
        # A shard lies beside its index: an index must not reach into other folders.
        if not isinstance(file, str) or Path(file).name != file or "\0" in file:
            raise ModelLoadError(
                index, f"tensor {name!r} is mapped to {file!r}, not to a file name"
            )
    return weight_map


def _read_header(file: Path) -> tuple[dict[str, Any], bytes]:
    """The parsed header, and what identifies the file's contents without reading them."""
    try:
        with file.open("rb") as stream:
            stat = os.fstat(stream.fileno())
            length = int.from_bytes(stream.read(8), "little")
            raw = stream.read(min(length, _MAX_HEADER_NBYTES))
    except OSError as error:
        raise ModelLoadError(file, f"cannot be read: {error}") from error
    if stat.st_size == 0:
        raise ModelLoadError(file, "the file is empty (0 bytes)")
    if stat.st_size < 8 or len(raw) < length:
        raise ModelLoadError(file, "not a safetensors file, or cut off within its header")
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(file, f"the safetensors header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise ModelLoadError(file, "the safetensors header is not an object")
    header.pop("__metadata__", None)
    _check_size(file, header, stat.st_size - 8 - length)
    identity = f"{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode()
    return header, identity + hashlib.sha256(raw).digest()


def _check_size(file: Path, header: dict[str, Any], data_nbytes: int) -> None:
    if not header:
        raise ModelLoadError(file, "the file holds no tensors")
    try:
        needed = max(int(entry["data_offsets"][1]) for entry in header.values())
    except (TypeError, KeyError, IndexError, ValueError, OverflowError) as error:
        raise ModelLoadError(file, f"malformed safetensors header: {error!r}") from error
    if needed != data_nbytes:
        problem = "truncated" if needed > data_nbytes else "too long"
        raise ModelLoadError(
            file, f"{problem}: its header describes {needed} bytes of tensors, it has {data_nbytes}"
        )


def _parse_header(file: Path, header: dict[str, Any]) -> dict[str, StoredTensor]:
    tensors = {}
    for name, entry in header.items():
        try:
            dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
            start, end = (int(offset) for offset in entry["data_offsets"])
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise ModelLoadError(file, f"malformed entry for tensor {name!r}: {error!r}") from error
        if dtype not in _DTYPES:
            raise ModelLoadError(file, f"tensor {name!r} has dtype {dtype}, which cannot be served")
        if end - start != math.prod(shape) * _DTYPES[dtype].itemsize:
            raise ModelLoadError(file, f"tensor {name!r}: shape, dtype and byte range disagree")
        tensors[name] = StoredTensor(file, _DTYPES[dtype], shape)
    return tensors
