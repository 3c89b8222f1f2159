"""What is wrong with a simulation's input."""

from __future__ import annotations

from pathlib import Path


class InputError(ValueError):
    """A file's row, or a setting, cannot be used; the text says where and why."""

    @classmethod
    def at(cls, path: Path, line: int, problem: str) -> InputError:
        """A problem of one line of a file."""
        return cls(f"{path}:{line}: {problem}")
