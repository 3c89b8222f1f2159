"""Every request needs a key whose scopes cover it, where the gateway has a file of keys."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from aegaeon.errors import AegaeonError
from aegaeon.http.errors import answer, to_api_error
from aegaeon.security import keys
from aegaeon.security.guard import Guard, current_caller

#: What load balancers ask, who have no key.
_OPEN = frozenset({"/health", "/ready"})
_ADMIN = frozenset({"/v1/models/deploy", "/v1/models/undeploy"})
_OBSERVE = ("/v1/aegaeon/", "/metrics")


def scope_of(path: str) -> keys.Scope | None:
    """What a path needs; None for those that need no key."""
    if path in _OPEN:
        return None
    if path in _ADMIN:
        return keys.Scope.ADMIN
    return keys.Scope.OBSERVE if path.startswith(_OBSERVE) else keys.Scope.GENERATE


class KeyCheck:
    """Answers what may not be with 401 or 403; lets handlers know who called through
    `current_caller`."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        needed = scope_of(scope["path"]) if scope["type"] == "http" else None
        if needed is None:
            await self._app(scope, receive, send)
            return
        try:
            caller = self._guard.authenticate(_authorization(scope))
            caller.require(needed)
        except AegaeonError as error:
            refusal = to_api_error(error)
            scope["aegaeon.error_code"] = refusal.code
            await answer(refusal)(scope, receive, send)
            return
        current_caller.set(caller)
        await self._app(scope, receive, send)


def _authorization(scope: Scope) -> str | None:
    given = Headers(scope=scope).getlist("authorization")
    # Two of them could be read as one by us and as the other by a proxy before us.
    return given[0] if len(given) == 1 else None
