"""``aegaeon keys``: who may use the services."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aegaeon.errors import ConfigError, InvalidRequestError, NotFoundError
from aegaeon.security.keys import Key, Scope, make_key

if TYPE_CHECKING:
    from aegaeon.security.key_file import KeyTable

keys = typer.Typer(
    help="Keys of callers: the gateway's API keys, and the tokens of gRPC. A file keeps their "
    "salted hashes; daemons with --keys-file read it again when it changes.",
)

File = Annotated[
    Path,
    typer.Option(
        "--file",
        envvar="AEGAEON_KEYS_FILE",
        help="The file of keys.",
    ),
]
Which = Annotated[str, typer.Argument(metavar="KEY", help="Its id, or its name.")]
Name = Annotated[str, typer.Argument(help="Who will have it; shown in errors and events.")]
Scopes = Annotated[
    list[Scope],
    typer.Option(
        "--scope",
        help="What it is for; may be repeated. generate: requests; observe: snapshots, events, "
        "metrics; admin: both, and deploying; cluster: schedulers and workers among themselves.",
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", help="A model that it may use, or a pattern with *; may be repeated."),
]
Requests = Annotated[int | None, typer.Option("--requests-per-minute", min=1)]
Tokens = Annotated[
    int | None,
    typer.Option("--tokens-per-minute", min=1, help="Prompt and generated tokens."),
]
NewLimit = Annotated[int | None, typer.Option(min=0, help="0 takes the limit away.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Write the key to this new file, readable by its owner alone, instead of printing it.",
    ),
]


@keys.command("add")
def add(
    name: Name,
    file: File,
    scopes: Scopes = [Scope.GENERATE],  # noqa: B006 - typer copies it
    models: Models = None,
    requests_per_minute: Requests = None,
    tokens_per_minute: Tokens = None,
    out: Out = None,
) -> None:
    """Make a key. It is printed this once: the file keeps a hash of it.

    Several keys may have one name, so that a holder can change from one to the next.
    """
    from aegaeon.security.key_file import changing_keys, check_name

    check_name(name)
    new = make_key()
    key = Key(
        key_id=new.key_id,
        name=name,
        salt=new.salt,
        digest=new.digest,
        scopes=frozenset(scopes),
        models=tuple(models or ()),
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        created_unix_s=int(time.time()),
    )
    with changing_keys(file) as table:
        if out is not None:
            _write_secret(out, new.text)
        table[key.key_id] = key
    print(new.key_id if out is not None else new.text)


@keys.command("list")
def list_keys(file: File, as_json: Json = False) -> None:
    """Show the keys, without what is secret."""
    from aegaeon.security.key_file import read_keys

    rows = [_row(key) for key in read_keys(file).values()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        _show(row)


@keys.command("revoke")
def revoke(which: Which, file: File) -> None:
    """Take a key away: its next request is refused. A name takes all keys of that name."""
    from aegaeon.security.key_file import changing_keys

    with changing_keys(file) as table:
        found = _found(table, which, file)
        for key_id in found:
            del table[key_id]
    print(f"revoked {', '.join(found)}")


@keys.command("limit")
def limit(
    which: Which,
    file: File,
    models: Models = None,
    requests_per_minute: NewLimit = None,
    tokens_per_minute: NewLimit = None,
) -> None:
    """Change what is given, and nothing else. 0 takes a limit away, and --model '*' allows all."""
    from aegaeon.security.key_file import changing_keys

    limits = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
    }
    changes: dict[str, Any] = {name: new or None for name, new in limits.items() if new is not None}
    if models:
        changes["models"] = tuple(models)
    if not changes:
        raise InvalidRequestError(
            "nothing to change; give --model, --requests-per-minute or --tokens-per-minute"
        )
    with changing_keys(file) as table:
        found = _found(table, which, file)
        for key_id in found:
            table[key_id] = dataclasses.replace(table[key_id], **changes)
        changed = [table[key_id] for key_id in found]
    for key in changed:
        _show(_row(key))


def _found(table: KeyTable, which: str, file: Path) -> list[str]:
    found = [key.key_id for key in table.values() if which in (key.key_id, key.name)]
    if not found:
        raise NotFoundError(f"{file} has no key of the id or name {which!r}")
    return found


def _write_secret(path: Path, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be made: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as out:
        out.write(text + "\n")


def _row(key: Key) -> dict[str, object]:
    return {
        "id": key.key_id,
        "name": key.name,
        "scopes": sorted(scope.value for scope in key.scopes),
        "models": list(key.models),
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
        "created_unix_s": key.created_unix_s,
    }


def _show(row: dict[str, object]) -> None:
    print("  ".join(f"{name}={_shown(value)}" for name, value in row.items() if value))


def _shown(value: object) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)
