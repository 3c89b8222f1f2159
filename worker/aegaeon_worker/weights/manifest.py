"""The header of a packed weight file.

``magic (8 bytes) | header length (u64, little-endian) | JSON``, then a hole up to ``data_offset``.
The header is a function of model, fingerprint and layout, so a file fits exactly when its first
bytes equal the expected header.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from aegaeon_worker.weights.layout import WeightLayout

FORMAT_VERSION = 1

_MAGIC = b"AEGWGHTS"
_PREFIX = struct.Struct("<8sQ")
_DATA_ALIGNMENT = 2 << 20
_MAX_HEADER_NBYTES = 64 << 20


@dataclass(frozen=True)
class Manifest:
    """What a weight file holds."""

    model: str
    fingerprint: str
    layout: WeightLayout

    def encode(self) -> bytes:
        """The header, magic and length included."""
        stages = [
            {
                "name": stage.name,
                "start": stage.start,
                "end": stage.end,
                "tensors": [
                    [slot.spec.name, str(slot.spec.dtype), list(slot.spec.shape), slot.offset]
                    for slot in stage.slots
                ],
            }
            for stage in self.layout.stages
        ]
        body = {
            "format_version": FORMAT_VERSION,
            "model": self.model,
            "fingerprint": self.fingerprint,
            "stages": stages,
        }
        text = json.dumps(body, separators=(",", ":")).encode()
        return _PREFIX.pack(_MAGIC, _PREFIX.size + len(text)) + text

    def file_name(self) -> str:
        """A name that differs whenever the header does."""
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", self.model).strip("-.")[:64] or "model"
        return f"{readable}-{hashlib.sha256(self.encode()).hexdigest()[:24]}.weights"


def data_offset(header: bytes) -> int:
    """Where the layout's byte 0 lies in the file: a multiple of 2 MiB, for huge pages."""
    return -(-len(header) // _DATA_ALIGNMENT) * _DATA_ALIGNMENT


def read_identity(path: Path) -> tuple[str, str] | None:
    """Model name and fingerprint in a file's header, or none if it is not a complete one."""
    try:
        with path.open("rb") as file:
            magic, length = _PREFIX.unpack(file.read(_PREFIX.size))
            if magic != _MAGIC or not _PREFIX.size < length <= _MAX_HEADER_NBYTES:
                return None
            body = json.loads(file.read(length - _PREFIX.size))
            return str(body["model"]), str(body["fingerprint"])
    except (OSError, ValueError, KeyError, struct.error):
        return None
