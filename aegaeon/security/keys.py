"""Keys: what they look like, what is kept of them, and what they permit.

A key is ``aeg_<id>_<secret>``. The secret is 256 random bits, so that a salted SHA-256 is enough at
rest: nobody can try that many, and every request can afford the check, which a slow hash for
passwords would turn into a way to overload the server.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from fnmatch import fnmatchcase

_SECRET_BYTES = 32
_SALT_BYTES = 16
_KEY = re.compile(r"aeg_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
#: Compared with when there is no such key, so that the time tells nothing.
_NOBODY = (bytes(_SALT_BYTES), bytes(hashlib.sha256().digest_size))


class Scope(enum.Enum):
    """What a key is for. `ADMIN` includes `GENERATE` and `OBSERVE`."""

    #: Generate, tokenize, list models.
    GENERATE = "generate"
    #: Look at the cluster: snapshots, events, metrics.
    OBSERVE = "observe"
    #: Deploy, undeploy, topology, drain.
    ADMIN = "admin"
    #: Be a scheduler or a worker: register, execute.
    CLUSTER = "cluster"


@dataclass(frozen=True)
class Key:
    """What is kept of a key; the secret is not."""

    key_id: str
    #: For people: who has it.
    name: str
    salt: bytes
    digest: bytes
    scopes: frozenset[Scope]
    #: Names, or patterns with ``*``, of models that it may use; empty is all of them.
    models: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    #: Prompt and generated tokens.
    tokens_per_minute: int | None = None
    created_unix_s: int = 0

    def permits(self, scope: Scope) -> bool:
        """Whether it is for this."""
        implied = scope in (Scope.GENERATE, Scope.OBSERVE) and Scope.ADMIN in self.scopes
        return implied or scope in self.scopes

    def permits_model(self, model: str) -> bool:
        """Whether it may use a model."""
        return not self.models or any(fnmatchcase(model, pattern) for pattern in self.models)


@dataclass(frozen=True)
class NewKey:
    """Its parts at the only moment at which all of them are known."""

    key_id: str
    text: str
    salt: bytes
    digest: bytes


def make_key() -> NewKey:
    """A new one; its text is told to its holder once and forgotten."""
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(_SECRET_BYTES)
    salt = secrets.token_bytes(_SALT_BYTES)
    return NewKey(key_id, f"aeg_{key_id}_{secret}", salt, _digest(salt, secret))


def find_key(keys: dict[str, Key], text: str) -> Key | None:
    """The key that a caller shows, or None. Takes as long for an unknown one."""
    match = _KEY.fullmatch(text)
    key_id, secret = match.groups() if match else ("", "")
    key = keys.get(key_id)
    salt, digest = (key.salt, key.digest) if key is not None else _NOBODY
    return key if hmac.compare_digest(_digest(salt, secret), digest) else None


def _digest(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode()).digest()
