"""Every gRPC call needs a key whose scopes cover it, where a daemon has a file of keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from aegaeon.errors import AegaeonError
from aegaeon.rpc.status import abort
from aegaeon.security.guard import Guard, current_caller
from aegaeon.security.keys import Scope

#: What load balancers and service managers ask, who have no key.
_OPEN = frozenset(
    {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/List"}
)
#: Scopes of services, and of methods that differ from the rest of their service.
_SCOPES = {
    "/aegaeon.v1.InferenceService/": Scope.GENERATE,
    "/aegaeon.v1.ModelService/": Scope.ADMIN,
    "/aegaeon.v1.ModelService/GetModel": Scope.GENERATE,
    "/aegaeon.v1.ModelService/ListModels": Scope.GENERATE,
    "/aegaeon.v1.ClusterService/": Scope.ADMIN,
    "/aegaeon.v1.ClusterService/GetRuntime": Scope.OBSERVE,
    "/aegaeon.v1.ClusterService/WatchEvents": Scope.OBSERVE,
    "/aegaeon.v1.ClusterService/RegisterWorker": Scope.CLUSTER,
    "/aegaeon.v1.ClusterService/RenewLease": Scope.CLUSTER,
    "/aegaeon.v1.ClusterService/DeregisterWorker": Scope.CLUSTER,
    "/aegaeon.v1.WorkerService/": Scope.CLUSTER,
    "/aegaeon.v1.KvService/": Scope.CLUSTER,
    "/grpc.reflection.v1alpha.ServerReflection/": Scope.OBSERVE,
}


def scope_of(method: str) -> Scope | None:
    """What a call needs, by its full method name; None for those that need no key."""
    if method in _OPEN:
        return None
    service = method[: method.rfind("/") + 1]
    return _SCOPES.get(method) or _SCOPES.get(service) or Scope.ADMIN


class KeyCheck(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in its stubs only
    """Ends calls that may not be with UNAUTHENTICATED or PERMISSION_DENIED; lets handlers know who
    called through `current_caller`."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        scope = scope_of(handler_call_details.method)
        if scope is None:
            return await continuation(handler_call_details)
        try:
            caller = self._guard.authenticate(_authorization(handler_call_details))
            caller.require(scope)
        except AegaeonError as error:
            return _refusal(error)
        current_caller.set(caller)
        return await continuation(handler_call_details)


def _authorization(details: grpc.HandlerCallDetails) -> str | None:
    given = [value for key, value in details.invocation_metadata or () if key == "authorization"]
    # Two of them could be read as one by us and as the other by a proxy before us.
    return given[0] if len(given) == 1 and isinstance(given[0], str) else None


def _refusal(error: AegaeonError) -> grpc.RpcMethodHandler[Any, Any]:
    async def refuse(_: Any, context: Any) -> None:
        await abort(context, error)

    # Streams on both sides, so that no message of the caller's is waited for.
    return grpc.stream_stream_rpc_method_handler(refuse)
