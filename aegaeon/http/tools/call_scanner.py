"""A call written as a JSON object, read while it is written."""

from __future__ import annotations

import enum
import json

_SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")


class _At(enum.Enum):
    """What comes next in the object, white space aside."""

    OBJECT = enum.auto()
    KEY = enum.auto()
    COLON = enum.auto()
    VALUE = enum.auto()
    IN_VALUE = enum.auto()
    COMMA = enum.auto()
    END = enum.auto()


_NEXT = {
    (_At.OBJECT, "{"): _At.KEY,
    (_At.KEY, "}"): _At.END,
    (_At.COLON, ":"): _At.VALUE,
    (_At.COMMA, ","): _At.KEY,
    (_At.COMMA, "}"): _At.END,
}


class CallScanner:
    """Reads ``{"name": ..., "arguments": {...}}`` in pieces, linear in their length.

    The arguments are the object's own text, released as it comes once the name is known; arguments
    that are a string are the text in it. Llama calls them parameters. Other keys are passed over.
    Where the ``name`` stands elsewhere, the arguments are read alone.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        #: The text is no such object.
        self.failed = False
        self._alone = name is not None
        self._at = _At.VALUE if self._alone else _At.OBJECT
        #: Of the value that is read or comes next; None while a key is.
        self._key = _ARGUMENTS[0] if self._alone else None
        self._value: list[str] = []
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._arguments: list[str] = []
        self._has_arguments = False
        #: The value is arguments that are released as they come.
        self._streams = False

    @property
    def done(self) -> bool:
        """The object is closed."""
        return self._at is _At.END

    def feed(self, text: str) -> int:
        """Take text up to the object's end; how many characters were taken."""
        for index, character in enumerate(text):
            if self.done or self.failed:
                return index
            self._step(character)
        return len(text)

    def arguments(self) -> str:
        """What is new of the arguments."""
        if self.name is None:
            return ""
        if self.done and not self._has_arguments:
            self._has_arguments = True
            return "{}"
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def _step(self, character: str) -> None:
        if self._at is _At.IN_VALUE:
            self._go_on(character)
        elif character in _SPACE:
            return
        elif self._at is _At.VALUE and character not in ",:]}":
            self._begin(character)
        elif self._at is _At.KEY and character == '"':
            self._key = None
            self._begin(character)
        elif (self._at, character) in _NEXT:
            self._at = _NEXT[self._at, character]
            self.failed = self.done and self.name is None
        else:
            self.failed = True

    def _begin(self, character: str) -> None:
        """Of a key or a value."""
        self._at = _At.IN_VALUE
        self._value = []
        self._in_string = character == '"'
        self._escaped = False
        self._depth = 1 if character in "{[" else 0
        self._streams = self._key in _ARGUMENTS and not self._in_string
        self._take(character)

    def _go_on(self, character: str) -> None:
        """In a key or a value."""
        bare = not self._in_string and self._depth == 0
        if bare and character in ",}" + _SPACE:  # the end of a number or a word
            self._end_value()
            self._step(character)
            return
        self._take(character)
        if self._in_string:
            self._in_string = self._escaped or character != '"'
            self._escaped = not self._escaped and character == "\\"
        elif character == '"':
            self._in_string = True
        else:
            self._depth += (character in "{[") - (character in "}]")
        if not bare and not self._in_string and self._depth == 0:
            self._end_value()

    def _take(self, character: str) -> None:
        (self._arguments if self._streams else self._value).append(character)
        self._has_arguments |= self._streams

    def _end_value(self) -> None:
        if self._key is None:
            self._key = self._string()
            self._at = _At.COLON
            return
        self._at = _At.COMMA
        if self._key == "name":
            self.name = self._string()
            self.failed |= not self.name
        elif self._key in _ARGUMENTS and not self._streams:
            self._has_arguments = True
            self._arguments.append(self._string())
        if self._alone:
            self._at = _At.END

    def _string(self) -> str:
        """The value as a string; a failure where it is none."""
        try:
            text = json.loads("".join(self._value), strict=False)
        except ValueError:
            text = None
        if not isinstance(text, str):
            self.failed = True
            return ""
        return text
