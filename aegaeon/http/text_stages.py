"""The decoders of the ``tokenizers`` package as transducers: pieces in, pieces out, in linear time.

Each does to a stream of pieces what the decoder of its name does to the whole list. What a stage
holds back is what it cannot know yet: nothing else waits.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from typing import Any, Protocol

_BYTE_TOKEN = re.compile(r"<0x(?:[0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")
_REPLACEMENT = "\ufffd"


class Stage(Protocol):
    """One decoder of the chain."""

    def feed(self, piece: str) -> list[str]:
        """Pieces that are certain now."""
        ...

    def finish(self) -> list[str]:
        """What was held back, at the end of the text."""
        ...


class ByteLevel:
    """Pieces spell bytes; a character may span several of them.

    Bytes that are no UTF-8 become U+FFFD, one per maximal invalid part; so does a character that
    the end of the text cuts off.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: str) -> list[str]:
        """Characters that are complete."""
        try:
            data = bytes([BYTES[character] for character in piece])
        except KeyError:  # such as an added token with a space: it stands for itself
            data = piece.encode()
        text = self._decoder.decode(data)
        return [text] if text else []

    def verbatim(self, text: str) -> list[str]:
        """Text of an added token, which spells no bytes."""
        text = self._decoder.decode(text.encode())
        return [text] if text else []

    def finish(self) -> list[str]:
        """An unfinished character."""
        text = self._decoder.decode(b"", final=True)
        return [text] if text else []


class ByteFallback:
    """Runs of tokens like ``<0xE2>`` spell UTF-8.

    A run is held until another token ends it, because a single wrong byte turns every byte of its
    run into a U+FFFD.
    """

    def __init__(self) -> None:
        self._run = bytearray()

    def feed(self, piece: str) -> list[str]:
        """Nothing within a run; the run and the piece after it."""
        if _BYTE_TOKEN.fullmatch(piece):
            self._run.append(int(piece[3:5], 16))
            return []
        return [*self.finish(), piece]

    def finish(self) -> list[str]:
        """The run at the end."""
        if not self._run:
            return []
        data = bytes(self._run)
        self._run.clear()
        try:
            return [data.decode()]
        except UnicodeDecodeError:
            return [_REPLACEMENT] * len(data)


class Replace:
    """Every piece on its own, or single characters of a stream."""

    def __init__(self, pattern: str, content: str) -> None:
        self._pattern = pattern
        self._content = content

    def feed(self, piece: str) -> list[str]:
        """The piece, replaced."""
        return [piece.replace(self._pattern, self._content)]

    def finish(self) -> list[str]:
        """Nothing is held."""
        return []


class StripPieces:
    """Up to so many characters from both ends of every piece."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content, self._start, self._stop = content, start, stop

    def feed(self, piece: str) -> list[str]:
        """The piece, stripped."""
        first, last = 0, len(piece)
        while first < min(self._start, len(piece)) and piece[first] == self._content:
            first += 1
        while len(piece) - last < self._stop and last > first and piece[last - 1] == self._content:
            last -= 1
        return [piece[first:last]]

    def finish(self) -> list[str]:
        """Nothing is held."""
        return []


class StripStart:
    """Up to so many characters from the beginning of the whole text."""

    def __init__(self, content: str, start: int) -> None:
        self._content, self._left = content, start

    def feed(self, piece: str) -> list[str]:
        """The piece, stripped while the text has only begun."""
        while self._left and piece:
            if piece[0] != self._content:
                self._left = 0
                break
            piece = piece[1:]
            self._left -= 1
        return [piece] if piece else []

    def finish(self) -> list[str]:
        """Nothing is held."""
        return []


class Metaspace:
    """The replacement stands for a space, except in a first token that was given one."""

    def __init__(self, replacement: str, drop_first: bool) -> None:
        self._replacement = replacement
        self._drop = drop_first

    def feed(self, piece: str) -> list[str]:
        """The piece with its spaces."""
        drop, self._drop = self._drop, False
        return [piece.replace(self._replacement, "" if drop else " ")]

    def finish(self) -> list[str]:
        """Nothing is held."""
        return []


class Separated:
    """Without a decoder, spaces stand between tokens."""

    def __init__(self) -> None:
        self._begun = False

    def feed(self, piece: str) -> list[str]:
        """The piece, after a space unless it is the first."""
        begun, self._begun = self._begun, True
        return [" " + piece if begun else piece]

    def finish(self) -> list[str]:
        """Nothing is held."""
        return []


class UnstreamableDecoderError(Exception):
    """The decoder needs the whole text at once."""


def stages(decoder: Mapping[str, Any] | None) -> list[Stage]:
    """Fresh stages for a decoder's JSON. Raises UnstreamableDecoderError."""
    if decoder is None:
        return [Separated()]
    chain = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    made: list[Stage] = []
    fused = False  # pieces are no tokens any more, but parts of one text
    for entry in chain:
        if entry["type"] == "Fuse":
            fused = True
            continue
        made.append(_fused_stage(entry) if fused else _stage(entry))
        fused = fused or entry["type"] == "ByteLevel"
    return made


def _stage(entry: Mapping[str, Any]) -> Stage:
    match entry:
        case {"type": "ByteLevel"}:
            return ByteLevel()
        case {"type": "ByteFallback"}:
            return ByteFallback()
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)}:
            return Replace(pattern, content)
        case {"type": "Strip", "content": content, "start": start, "stop": stop}:
            return StripPieces(content, start, stop)
        case {"type": "Metaspace", "replacement": str(replacement)}:
            return Metaspace(replacement, entry.get("prepend_scheme", "always") != "never")
    raise UnstreamableDecoderError(entry["type"])


def _fused_stage(entry: Mapping[str, Any]) -> Stage:
    match entry:
        case {"type": "Strip", "content": content, "start": start, "stop": 0}:
            return StripStart(content, start)
        case {"type": "Replace", "pattern": {"String": str(p)}, "content": str(content)} if (
            len(p) == 1
        ):
            return Replace(p, content)
    raise UnstreamableDecoderError(entry["type"])


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


#: The byte that a character of a byte-level piece stands for.
BYTES = _byte_alphabet()
