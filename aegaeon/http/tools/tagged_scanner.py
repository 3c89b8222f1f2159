"""A call written as tags, one around each argument, read while it is written."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping

from aegaeon.http.tools.argument_types import ArgumentTypes, as_json
from aegaeon.http.tools.marks import next_mark, overlap

FUNCTION = "<function="
_PARAMETER = "<parameter="
_END_PARAMETER = "</parameter>"
_END_FUNCTION = "</function>"
_END_CALL = "</tool_call>"
_MAX_NAME = 128
_MAX_PARAMETER = 1024


class _At(enum.Enum):
    FUNCTION = enum.auto()
    NAME = enum.auto()
    BETWEEN = enum.auto()
    PARAMETER = enum.auto()
    VALUE = enum.auto()
    END = enum.auto()


class TaggedScanner:
    """Reads ``<function=NAME>`` with ``<parameter=NAME>`` in it, as Qwen3-Coder writes calls.

    A value is the text between its tags without the line breaks next to them, and becomes JSON of
    a type that ``tools`` allow it. Strings are released as they come, other values as a whole.
    What stands between the parameters is passed over, and a call that ends without its last tag is
    complete.
    """

    def __init__(self, tools: Mapping[str, ArgumentTypes]) -> None:
        self._tools = tools
        self.name: str | None = None
        #: The text is no such call.
        self.failed = False
        self._at = _At.FUNCTION
        #: What has been taken and not understood yet.
        self._held = ""
        self._arguments: list[str] = []
        self._types = ArgumentTypes(None)
        self._count = 0
        # Of the value that is read:
        self._type = frozenset[str]()
        self._is_string = False
        self._begun = False
        self._parts: list[str] = []

    @property
    def done(self) -> bool:
        """The call is closed."""
        return self._at is _At.END

    def feed(self, text: str) -> int:
        """Take text up to the call's end; how many characters were taken."""
        if self.done or self.failed:
            return 0
        self._held += text
        steps = {
            _At.FUNCTION: self._function,
            _At.NAME: self._name,
            _At.BETWEEN: self._between,
            _At.PARAMETER: self._parameter,
            _At.VALUE: self._value,
        }
        while not self.done and not self.failed and steps[self._at]():
            pass
        if not self.done and not self.failed:
            return len(text)
        rest, self._held = len(self._held), ""
        return len(text) - rest

    def arguments(self) -> str:
        """What is new of the arguments."""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def _function(self) -> bool:
        if self._held.startswith(FUNCTION):
            return self._take(len(FUNCTION), _At.NAME)
        # As far as it is such a tag, so that it does not matter how the text is cut.
        self._fail_after(_common(self._held, FUNCTION))
        return False

    def _name(self) -> bool:
        name = self._named()
        if name is not None:
            self.name = name
            self._types = self._tools.get(name) or ArgumentTypes(None)
            self._take(len(name) + 1, _At.BETWEEN)
        return name is not None

    def _between(self) -> bool:
        """Up to the next parameter, or to the end."""
        at, mark = next_mark(self._held, (_PARAMETER, _END_FUNCTION, _END_CALL))
        self._held = self._held[at:]
        if not mark:
            return False
        if mark == _PARAMETER:
            return self._take(len(mark), _At.PARAMETER)
        self._arguments.append("}" if self._count else "{}")
        return self._take(len(mark), _At.END)

    def _parameter(self) -> bool:
        at = self._held.find(">", 0, _MAX_PARAMETER + 1)
        if at < 0:
            if len(self._held) > _MAX_PARAMETER:  # no name is so long
                return self._take(0, _At.BETWEEN)
            return False
        name = self._held[:at]
        self._arguments.append(", " if self._count else "{")
        self._arguments.append(json.dumps(name, ensure_ascii=False) + ": ")
        self._count += 1
        self._type = self._types.of(name)
        self._is_string = self._type == {"string"}
        self._begun = False
        self._parts = []
        return self._take(len(name) + 1, _At.VALUE)

    def _value(self) -> bool:
        at = self._held.find(_END_PARAMETER)
        if at >= 0:
            self._grow(self._held[:at].removesuffix("\n"))
            self._end_value()
            return self._take(at + len(_END_PARAMETER), _At.BETWEEN)
        marks = (_END_PARAMETER, "\n" + _END_PARAMETER)
        certain = len(self._held) - max(overlap(self._held, mark) for mark in marks)
        self._grow(self._held[:certain])
        self._held = self._held[certain:]
        return False

    def _grow(self, text: str) -> None:
        """What is certain of a value."""
        if text and not self._begun:
            self._begun = True
            text = text.removeprefix("\n")
            if self._is_string:
                self._arguments.append('"')
        if self._is_string:
            self._arguments.append(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._parts.append(text)

    def _end_value(self) -> None:
        if self._is_string:
            self._arguments.append('"' if self._begun else '""')
        else:
            self._arguments.append(as_json("".join(self._parts), self._type))

    def _named(self) -> str | None:
        """The name of the function, if it is complete; fails where it can be none."""
        for index, character in enumerate(self._held):
            if character == ">" and index:
                return self._held[:index]
            if character in '<>"\n' or index == _MAX_NAME:
                self._fail_after(index)
                return None
        return None

    def _take(self, count: int, at: _At) -> bool:
        self._held = self._held[count:]
        self._at = at
        return True

    def _fail_after(self, count: int) -> None:
        """There is no call if anything but this much of the text is there."""
        self.failed = count < len(self._held)
        if self.failed:
            self._held = self._held[count:]


def _common(text: str, mark: str) -> int:
    """Length of what both begin with."""
    for index, (one, other) in enumerate(zip(text, mark, strict=False)):
        if one != other:
            return index
    return min(len(text), len(mark))
