"""Keys for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aegaeon.security.key_file import changing_keys
from aegaeon.security.keys import Key, Scope, make_key


def make_text(file: Path, *scopes: Scope, name: str = "app", **limits: Any) -> str:
    """A new key in the file; what its holder gets."""
    new = make_key()
    with changing_keys(file) as table:
        table[new.key_id] = Key(new.key_id, name, new.salt, new.digest, frozenset(scopes), **limits)
    return new.text
