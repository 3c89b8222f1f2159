"""The file of keys: JSON, written by ``aegaeon keys``, readable by its owner alone."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aegaeon.errors import ConfigError
from aegaeon.security.keys import Key, Scope

KeyTable = dict[str, Key]

_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_Rate = Annotated[int, Field(ge=1, le=2**53)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    name: Annotated[str, Field(pattern=_NAME.pattern)]
    salt: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    scopes: list[str]
    models: list[str] = []
    requests_per_minute: _Rate | None = None
    tokens_per_minute: _Rate | None = None
    created_unix_s: int = 0


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    version: int
    keys: list[_Entry]


def parse_keys(content: bytes, file: Path) -> KeyTable:
    """Keys by id. Raises ConfigError, which repeats nothing of the file but names of fields."""
    try:
        parsed = _File.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{file}: is no file of keys: {where}: {first['msg']}") from None
    if parsed.version != _VERSION:
        raise ConfigError(f"{file}: has version {parsed.version}; this release reads {_VERSION}")
    table: KeyTable = {}
    for entry in parsed.keys:
        if entry.id in table:
            raise ConfigError(f"{file}: the key {entry.id} is there twice")
        table[entry.id] = _key(entry, file)
    return table


def read_keys(file: Path) -> KeyTable:
    """The keys of a file. Raises ConfigError."""
    try:
        return parse_keys(file.read_bytes(), file)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error


def check_name(name: str) -> None:
    """Raise ConfigError for a name that a key cannot have."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name of a key: 1 to 64 letters, digits and any of _ . @ -, the first "
            "one a letter or digit"
        )


@contextlib.contextmanager
def changing_keys(file: Path) -> Iterator[KeyTable]:
    """The keys of a file, to be changed; written at the end, whole or not at all.

    A missing file is made. Two changes at once follow each other. Raises ConfigError.
    """
    try:
        lock = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{file.parent}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        table = read_keys(file) if file.exists() else {}
        yield table
        _write(file, table)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from error
    finally:
        os.close(lock)


def _write(file: Path, table: KeyTable) -> None:
    entries = [_entry(key).model_dump(exclude_defaults=True) for key in table.values()]
    text = json.dumps({"version": _VERSION, "keys": entries}, indent=2) + "\n"
    # Owner, group and mode of the file it replaces: a daemon of another user must still read it.
    before = file.stat() if file.exists() else None
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w") as out:
            if before is not None:
                os.fchmod(descriptor, before.st_mode & 0o777)
                if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(descriptor, before.st_uid, before.st_gid)
            out.write(text)
            out.flush()
            os.fsync(descriptor)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _key(entry: _Entry, file: Path) -> Key:
    try:
        scopes = frozenset(Scope(scope) for scope in entry.scopes)
    except ValueError:
        known = ", ".join(scope.value for scope in Scope)
        raise ConfigError(
            f"{file}: the key {entry.id} has a scope that is none of {known}"
        ) from None
    return Key(
        key_id=entry.id,
        name=entry.name,
        salt=bytes.fromhex(entry.salt),
        digest=bytes.fromhex(entry.sha256),
        scopes=scopes,
        models=tuple(entry.models),
        requests_per_minute=entry.requests_per_minute,
        tokens_per_minute=entry.tokens_per_minute,
        created_unix_s=entry.created_unix_s,
    )


def _entry(key: Key) -> _Entry:
    return _Entry(
        id=key.key_id,
        name=key.name,
        salt=key.salt.hex(),
        sha256=key.digest.hex(),
        scopes=sorted(scope.value for scope in key.scopes),
        models=list(key.models),
        requests_per_minute=key.requests_per_minute,
        tokens_per_minute=key.tokens_per_minute,
        created_unix_s=key.created_unix_s,
    )
