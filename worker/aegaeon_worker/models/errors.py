"""Why a model cannot be served."""

from __future__ import annotations

from pathlib import Path

from aegaeon import errors


class ModelLoadError(errors.ModelLoadError):
    """A checkpoint cannot be served; names the file or folder, and the problem."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}", metadata={"path": path})
        self.path = path


class ModelUnsupportedError(ModelLoadError, errors.ModelUnsupportedError):
    """The checkpoint is sound, but its architecture is not one that this worker can serve."""

    reason = errors.ModelUnsupportedError.reason
