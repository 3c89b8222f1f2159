"""The bearer token that this process shows to others."""

from __future__ import annotations

import os
from pathlib import Path

from aegaeon.errors import ConfigError
from aegaeon.security.settings import TOKEN_VARIABLE
from aegaeon.security.watched_file import WatchedFile

_MAX_BYTES = 4096


class Token:
    """From a file, which is read again when it changes, or from ``AEGAEON_TOKEN``, or none."""

    def __init__(self, file: Path | None) -> None:
        self._file = None if file is None else WatchedFile(file, lambda raw: _parse(raw, file))
        self._own = os.environ.get(TOKEN_VARIABLE, "") if file is None else ""
        if self._own:
            _check(self._own, TOKEN_VARIABLE)

    @property
    def given(self) -> bool:
        """Whether there is one."""
        return self._file is not None or bool(self._own)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a call carries of it."""
        token = self._own if self._file is None else self._file.get()
        return (("authorization", f"Bearer {token}"),) if token else ()


def _parse(content: bytes, file: Path) -> str:
    text = content.decode("ascii", errors="replace").strip()
    if not text:
        raise ConfigError(f"{file}: is empty; it must hold one token")
    _check(text, str(file))
    return text


def _check(token: str, where: str) -> None:
    # The text itself is never repeated: errors go to logs.
    if len(token) > _MAX_BYTES or any(not "!" <= character <= "~" for character in token):
        raise ConfigError(f"{where}: must hold one token of at most {_MAX_BYTES} visible letters")
