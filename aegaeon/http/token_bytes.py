"""What a single token spells: a part of a character, a byte, or text."""

from __future__ import annotations

import re

from aegaeon.http.text_stages import (
    BYTES,
    ByteFallback,
    ByteLevel,
    Metaspace,
    Separated,
    StripStart,
    stages,
)
from aegaeon.http.vocabulary import Vocabulary

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes(vocabulary: Vocabulary, token_id: int) -> bytes:
    """The token's share of a text that it stands in the middle of; special tokens verbatim."""
    found = vocabulary.spelled.get(token_id)
    if found is None:
        found = vocabulary.spelled[token_id] = _spell(vocabulary, token_id)
    return found


def _spell(vocabulary: Vocabulary, token_id: int) -> bytes:
    added = vocabulary.added.get(token_id)
    if added is not None:
        return added.encode()
    if not vocabulary.streams:
        return vocabulary.decode_all([token_id], False).encode()
    piece = vocabulary.piece(token_id)
    if piece is None:
        return b""
    chain = stages(vocabulary.decoder)
    if any(isinstance(stage, ByteLevel) for stage in chain):
        known = all(character in BYTES for character in piece)
        return bytes(BYTES[character] for character in piece) if known else piece.encode()
    byte = _BYTE_TOKEN.fullmatch(piece)
    if byte and any(isinstance(stage, ByteFallback) for stage in chain):
        return bytes([int(byte[1], 16)])
    pieces = [piece]
    for stage in chain:
        if isinstance(stage, Metaspace | Separated):
            stage.feed("")  # it stands in the middle
        if not isinstance(stage, StripStart):
            pieces = [made for one in pieces for made in stage.feed(one)]
    return "".join(pieces).encode()
