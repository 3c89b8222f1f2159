"""What stands around the calls in a text, and where in it."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable
from dataclasses import dataclass

_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True)
class Marks:
    """How a family writes calls.

    Behind ``begin`` stands a call, or a list of them in brackets, and then ``end``. Without
    ``begin`` an answer is calls if it starts with a brace or with ``prefix``; ``separator`` stands
    between them. With a ``split`` a call is not one object, but a name, the split, and arguments.
    """

    begin: str = ""
    end: str = ""
    prefix: str = ""
    separator: str = ""
    split: str = ""
    #: Of a call's id.
    id_prefix: str = "call_"
    id_length: int = 24

    def new_id(self) -> str:
        """An id of a call."""
        return self.id_prefix + "".join(secrets.choice(_ALPHABET) for _ in range(self.id_length))


def next_mark(text: str, marks: Iterable[str]) -> tuple[int, str]:
    """Where the first of some marks begins, and which it is. If there is none, where one may have
    begun that the text is too short for, and nothing."""
    at, found, certain = len(text), "", len(text)
    for mark in marks:
        place = text.find(mark, 0, at + len(mark) - 1) if found else text.find(mark)
        if place >= 0 and (not found or place < at):
            at, found = place, mark
        certain = min(certain, len(text) - overlap(text, mark))
    return (at, found) if found else (certain, "")


def overlap(text: str, mark: str) -> int:
    """Length of the longest proper prefix of ``mark`` that ends ``text``."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
