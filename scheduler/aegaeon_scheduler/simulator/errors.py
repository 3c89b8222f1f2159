"""What is wrong with a simulation's input."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from pathlib import Path

from aegaeon.errors import ConfigError


class InputError(ConfigError):
    """A file's row, or a setting, cannot be used; the text says where and why."""

    @classmethod
    def at(cls, path: Path, line: int, problem: str) -> InputError:
        """A problem of one line of a file."""
        return cls(f"{path}:{line}: {problem}")

    @classmethod
    def unknown(cls, kind: str, name: str, known: Collection[str]) -> InputError:
        """A name that is none of ``known``; the nearest one is suggested."""
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"
        return cls(f"unknown {kind} {name!r}; {hint}")
