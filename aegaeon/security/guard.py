"""Tells who calls, and what the caller may do now."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

from aegaeon.errors import PermissionDeniedError, UnauthenticatedError
from aegaeon.security.budgets import Budget, Budgets
from aegaeon.security.key_file import KeyTable, parse_keys
from aegaeon.security.keys import Key, Scope, find_key
from aegaeon.security.watched_file import WatchedFile

_SCHEME = "bearer "
#: As the contract bounds it.
_MAX_SALT_BYTES = 256


class Caller:
    """Whoever may do everything: there are no keys."""

    #: For logs and events.
    name = ""

    def require(self, scope: Scope) -> None:
        """Raise PermissionDeniedError when the caller's key is not for this."""

    def check_model(self, model: str) -> None:
        """Raise PermissionDeniedError for a model that the caller may not use."""

    def permits_model(self, model: str) -> bool:
        """Whether the caller may use a model."""
        return True

    def admit(self, model: str, prompt_tokens: int) -> None:
        """Count a request. Raises what refuses it; ResourceExhaustedError says until when."""

    def spend(self, tokens: int) -> None:
        """Count generated tokens."""

    def budget(self) -> Budget | None:
        """What the caller may use per minute; None without limits. Raises UnauthenticatedError."""

    def own_salt(self, cache_salt: str) -> str:
        """The salt under which KV of this caller's prompts is shared."""
        return cache_salt


#: Who called, in whatever runs on behalf of a call.
current_caller: ContextVar[Caller] = ContextVar("aegaeon_caller", default=Caller())  # noqa: B039


class Guard:
    """The keys of a file, and what each has left of its limits in this process. Belongs to one
    event loop."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys: WatchedFile[KeyTable] = WatchedFile(file, lambda raw: parse_keys(raw, file))
        self.budgets = Budgets(clock)

    def authenticate(self, authorization: str | None) -> Caller:
        """Who shows this ``Authorization``. Raises UnauthenticatedError."""
        if not authorization:
            raise UnauthenticatedError(
                "no key was given; send one as the header 'Authorization: Bearer <key>'"
            )
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise UnauthenticatedError(
                "the Authorization header has another scheme than 'Bearer <key>'"
            )
        key = find_key(self._keys.get(), authorization[len(_SCHEME) :].strip())
        if key is None:
            raise _unknown()
        return KeyHolder(self, key.key_id)

    def key(self, key_id: str) -> Key:
        """A key as it is now. Raises UnauthenticatedError when it is there no longer."""
        key = self._keys.get().get(key_id)
        if key is None:
            raise _unknown()
        return key


class KeyHolder(Caller):
    """Whoever showed a key. Asks for the key each time: it may change, or be revoked, meanwhile."""

    def __init__(self, guard: Guard, key_id: str) -> None:
        self._guard = guard
        self._key_id = key_id
        self.name = guard.key(key_id).name

    def require(self, scope: Scope) -> None:
        """See `Caller`; raises UnauthenticatedError once the key is revoked, as all others do."""
        if not self._guard.key(self._key_id).permits(scope):
            raise PermissionDeniedError(
                f"the key {self.name!r} is not for this: it needs the scope {scope.value!r}",
                metadata={"scope": scope.value},
            )

    def check_model(self, model: str) -> None:
        """See `Caller`."""
        if not self.permits_model(model):
            raise PermissionDeniedError(
                f"the key {self.name!r} may not use model {model!r}", metadata={"model": model}
            )

    def permits_model(self, model: str) -> bool:
        """See `Caller`."""
        return self._guard.key(self._key_id).permits_model(model)

    def admit(self, model: str, prompt_tokens: int) -> None:
        """See `Caller`."""
        self.require(Scope.GENERATE)
        self.check_model(model)
        budget = self.budget()
        if budget is not None:
            self._guard.budgets.take(budget, 1, prompt_tokens)

    def spend(self, tokens: int) -> None:
        """See `Caller`."""
        try:
            budget = self.budget()
        except UnauthenticatedError:
            return  # revoked while it was served; nothing is left to be counted
        if budget is not None:
            self._guard.budgets.owe(budget, 0, tokens)

    def budget(self) -> Budget | None:
        """See `Caller`."""
        key = self._guard.key(self._key_id)
        if not key.requests_per_minute and not key.tokens_per_minute:
            return None
        return Budget(key.key_id, key.name, key.requests_per_minute, key.tokens_per_minute)

    def own_salt(self, cache_salt: str) -> str:
        """Another one for every name of keys: how fast a prompt is answered tells nobody else that
        it was asked before. A salt that is too long is left to those who refuse it."""
        if len(cache_salt.encode()) > _MAX_SALT_BYTES:
            return cache_salt
        return hashlib.sha256(f"{self.name}\0{cache_salt}".encode()).hexdigest()


def _unknown() -> UnauthenticatedError:
    return UnauthenticatedError("the key is wrong or has been revoked; ask the operator for one")
