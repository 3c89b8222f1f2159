"""Why a model cannot be served."""

from __future__ import annotations

from pathlib import Path


class ModelLoadError(Exception):
    """A checkpoint cannot be served; names the file or folder, and the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class ModelUnsupportedError(ModelLoadError):
    """The checkpoint is sound, but its architecture is not one that this worker can serve."""
