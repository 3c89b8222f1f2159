"""Calls in the text of an answer, found while it is made."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aegaeon.http.tools.call_scanner import CallScanner
from aegaeon.http.tools.marks import Marks, next_mark

_MAX_NAME = 128


@dataclass(frozen=True)
class CallPart:
    """What is new of a call. The first part of each has its id and name."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


@dataclass
class Parts:
    """What is new of an answer: text beside the calls, and calls."""

    text: str = ""
    calls: list[CallPart] = field(default_factory=list)


class Scanner(Protocol):
    """Reads a call while it is written."""

    name: str | None
    #: The text is no call.
    failed: bool

    @property
    def done(self) -> bool:
        """The call is closed."""

    def feed(self, text: str) -> int:
        """Take text up to the call's end; how many characters were taken."""

    def arguments(self) -> str:
        """What is new of the arguments, as JSON text."""


class _At(enum.Enum):
    START = enum.auto()
    TEXT = enum.auto()
    OPEN = enum.auto()
    CALL = enum.auto()
    CLOSE = enum.auto()


class CallParser:
    """Splits an answer's text. All that `feed` and `finish` return, joined, does not depend on how
    the text is cut.

    White space beside calls is dropped. What begins like a call and has no name is text. With
    ``single`` only the first call is told.
    """

    def __init__(
        self,
        marks: Marks,
        *,
        single: bool = False,
        calls_only: bool = False,
        bare: Sequence[str] = (),
        scanner: Callable[[], Scanner] = CallScanner,
    ) -> None:
        """``scanner`` makes what reads a call of its own mark; a call that begins like one of
        ``bare`` has no mark before it. With ``calls_only`` there is no text: what is none yet has
        been cut by the limit of tokens."""
        self._marks = marks
        self._bare = bare
        self._begins = [mark for mark in (marks.begin, *bare) if mark]
        self._calls_only = calls_only
        self._new_scanner = scanner
        self._single = single
        self._at = _At.TEXT if marks.begin else _At.START
        self._held = ""
        #: White space that is text unless a call follows.
        self._space = ""
        #: All of a call whose name is not known yet.
        self._raw = ""
        self._in_list = False
        self._scanner: Scanner = scanner()
        self._told = False
        #: Calls so far.
        self.count = 0

    def feed(self, text: str) -> Parts:
        """What is certain now."""
        parts = Parts()
        self._held += text
        steps = {
            _At.START: self._start,
            _At.TEXT: self._text,
            _At.OPEN: self._open,
            _At.CALL: self._call,
            _At.CLOSE: self._close,
        }
        while self._held and steps[self._at](parts):
            pass
        return parts

    def finish(self) -> Parts:
        """What was held back, as the text is over."""
        parts = Parts()
        if self._at in (_At.OPEN, _At.CALL) and not self._told:
            parts.text = self._space + self._raw + self._held
        elif self._at in (_At.START, _At.TEXT):
            rest = self._space + self._held
            # The limit may have come in the middle of what begins the next call.
            cut = len(self._held) > 1 and any(b.startswith(self._held) for b in self._begins)
            parts.text = "" if self.count and (cut or not rest.strip()) else rest
        self._held = self._space = ""
        if self._calls_only:
            parts.text = ""
        return parts

    def _start(self, parts: Parts) -> bool:
        """Is the answer calls, where nothing marks them?"""
        self._skip_space()
        prefix = self._marks.prefix
        if prefix and self._held.startswith(prefix):
            self._enter(prefix)
        elif prefix and prefix.startswith(self._held):
            return False
        elif self._held.startswith("{"):
            self._enter("")
        else:
            self._at = _At.TEXT
        return True

    def _text(self, parts: Parts) -> bool:
        """Text up to the next call; white space at its end is held back."""
        at, mark = next_mark(self._held, self._begins)
        text = self._space + self._held[:at]
        kept = text.rstrip()
        parts.text += kept
        self._space = text[len(kept) :]
        self._held = self._held[at:]
        if mark:
            self._enter("" if mark in self._bare else mark)
        return bool(mark)

    def _enter(self, mark: str) -> None:
        self._raw = mark
        self._held = self._held[len(mark) :]
        self._at = _At.OPEN

    def _open(self, parts: Parts) -> bool:
        """Between a mark and the call itself."""
        split = self._marks.split
        if split:
            return self._named(split, parts)
        self._raw += self._skip_space(keep=False)
        if self._held.startswith("[") and self._marks.begin and not self._in_list:
            self._in_list = True
            self._raw += "["
            self._held = self._held[1:]
        elif self._held:
            self._begin_call(self._new_scanner())
        return bool(self._held)

    def _named(self, split: str, parts: Parts) -> bool:
        """A name that stands before its arguments."""
        at = self._held.find(split)
        name = self._held[:at].partition("[CALL_ID]")[0].strip()
        if at >= 0 and name:
            self._raw += self._held[: at + len(split)]
            self._held = self._held[at + len(split) :]
            self._begin_call(CallScanner(name))
            return True
        if at >= 0 or len(self._held) > _MAX_NAME:
            self._give_up(parts)
            return True
        return False

    def _begin_call(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._told = False
        self._at = _At.CALL

    def _call(self, parts: Parts) -> bool:
        scanner = self._scanner
        taken = scanner.feed(self._held)
        if not self._told:
            self._raw += self._held[:taken]
        self._held = self._held[taken:]
        if scanner.failed and not self._told:
            self._give_up(parts)
            return True
        self._tell(scanner, parts)
        if scanner.done:
            self._at = _At.CLOSE
        elif scanner.failed:
            self._at = _At.TEXT
        return scanner.done or scanner.failed

    def _tell(self, scanner: Scanner, parts: Parts) -> None:
        arguments = scanner.arguments()
        if scanner.name is not None and not self._told:
            self._told = True
            self._space = self._raw = ""
            self.count += 1
            if not self._single or self.count == 1:
                new = CallPart(self.count - 1, arguments, self._marks.new_id(), scanner.name)
                parts.calls.append(new)
        elif arguments and (not self._single or self.count == 1):
            parts.calls.append(CallPart(self.count - 1, arguments))

    def _give_up(self, parts: Parts) -> None:
        """It was no call: it is text, as far as it has been read."""
        parts.text += self._space + self._raw
        self._space = self._raw = ""
        self._in_list = False
        self._at = _At.TEXT

    def _close(self, parts: Parts) -> bool:
        """After a call."""
        self._skip_space(keep=False)
        end = "]" if self._in_list else self._marks.end
        separator = "," if self._in_list else self._marks.separator
        if not self._held:
            return False
        if separator and self._held.startswith(separator):
            self._enter(separator)
        elif end and self._held.startswith(end):
            self._held = self._held[len(end) :]
            # A list has no end of its own besides its bracket.
            self._in_list = False
            self._at = _At.TEXT
        elif end and end.startswith(self._held):
            return False
        else:
            self._in_list = False
            self._at = _At.TEXT
        return True

    def _skip_space(self, *, keep: bool = True) -> str:
        rest = self._held.lstrip()
        space = self._held[: len(self._held) - len(rest)]
        self._held = rest
        if keep:
            self._space += space
        return space


def parts_of(parser: CallParser | None, text: str, *, ends: bool) -> Parts:
    """What a piece of an answer's text holds; all of it is text without a parser."""
    if parser is None:
        return Parts(text)
    parts = parser.feed(text)
    if not ends:
        return parts
    rest = parser.finish()
    return Parts(parts.text + rest.text, parts.calls + rest.calls)
