"""Packets between a worker that lends chunks of its device and one that borrows them."""

from __future__ import annotations

import enum
import struct

#: Chunks of one request: the kernel passes 253 descriptors at a time, and a process may have 1,024.
MOST_CHUNKS = 64
MAX_NBYTES = 4096

_HEADER = struct.Struct("<BI")


class Kind(enum.IntEnum):
    """What a packet is about; an answer has the kind of its request, or is ``REFUSED``."""

    #: Numbers of chunks; the answer brings a descriptor for each.
    CHUNKS = 1
    #: The number of an offer; answered when it is in the slabs, or gone.
    SAVE = 2
    #: The chunks asked for, and why there are none.
    REFUSED = 3


def pack(kind: Kind, numbers: list[int], text: str = "") -> bytes:
    """A packet."""
    body = struct.pack(f"<{len(numbers)}Q", *numbers)
    room = MAX_NBYTES - _HEADER.size - len(body)
    return _HEADER.pack(kind, len(numbers)) + body + text.encode()[:room]


def unpack(packet: bytes) -> tuple[Kind, list[int]]:
    """Kind and numbers; ``ValueError`` for anything that is no packet."""
    try:
        kind, count = _HEADER.unpack_from(packet)
        numbers = struct.unpack_from(f"<{count}Q", packet, _HEADER.size)
    except struct.error as error:
        raise ValueError(f"{len(packet)} bytes are no packet") from error
    return Kind(kind), list(numbers)


def text_of(packet: bytes) -> str:
    """What follows the numbers."""
    _, numbers = unpack(packet)
    return packet[_HEADER.size + 8 * len(numbers) :].decode(errors="replace")
