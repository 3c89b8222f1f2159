"""Drains of workers and of the scheduler itself, and what is left of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from aegaeon.errors import InvalidRequestError
from aegaeon.v1 import cluster_pb2
from aegaeon_scheduler.core import draining
from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.events import DrainRequested
from aegaeon_scheduler.service.driver import Driver, shutting_down

#: How often whoever watches a drain is told of changes at most, in seconds.
_LOOK_S = 0.05


class Drains:
    """Begins drains, and watches them while somebody wants to know."""

    def __init__(self, driver: Driver, set_serving: Callable[[bool], Awaitable[None]]) -> None:
        """``set_serving`` changes the health of the whole scheduler."""
        self._driver = driver
        self._set_serving = set_serving

    async def run(
        self, request: cluster_pb2.DrainRequest
    ) -> AsyncIterator[cluster_pb2.DrainResponse]:
        """Begin, or take back; see the contract. Raises AegaeonError."""
        epochs = self._epochs(request)
        if request.node_id:
            self._driver.apply(DrainRequested(epochs, request.resume))
        else:
            await self._set_serving(request.resume)
            self._driver.draining = not request.resume
        told: cluster_pb2.DrainResponse | None = None
        while True:
            if self._driver.closing:
                raise shutting_down()
            answer = self._look(epochs) if request.node_id else self._look_at_all()
            if request.resume:
                answer.drained = False
            if answer != told:
                yield answer
                told = answer
            if answer.drained or request.resume:
                return
            await asyncio.sleep(_LOOK_S)

    def _epochs(self, request: cluster_pb2.DrainRequest) -> tuple[int, ...]:
        index = request.worker_index if request.HasField("worker_index") else None
        if not request.node_id:
            if index is not None:
                raise InvalidRequestError(
                    "worker_index is given without node_id; name the worker's node",
                    metadata={"field": "node_id", "value": ""},
                )
            return ()
        node = self._driver.cluster.state.nodes.get(request.node_id)
        engines = {} if node is None else node.engines
        # One rank cannot stop without the others of its engine.
        found = tuple(
            engine.epoch
            for _, engine in sorted(engines.items())
            if index is None or index in engine.identity.engine_indexes
        )
        if not found:
            field = "node_id" if index is None or not engines else "worker_index"
            raise InvalidRequestError(
                f"node {request.node_id!r} has no registered worker"
                + ("" if index is None else f" {index}"),
                metadata={"field": field, "value": request.node_id if index is None else index},
            )
        return found

    def _look(self, epochs: tuple[int, ...]) -> cluster_pb2.DrainResponse:
        state = self._driver.cluster.state
        engines = [engine for epoch in epochs if (engine := state.engines.get(epoch))]
        return cluster_pb2.DrainResponse(
            remaining_sequences=sum(_remaining(engine) for engine in engines),
            unserved_models=draining.unserved_models(state),
            drained=all(draining.drained(engine) for engine in engines),
        )

    def _look_at_all(self) -> cluster_pb2.DrainResponse:
        remaining = len(self._driver.cluster.state.sequences)
        return cluster_pb2.DrainResponse(remaining_sequences=remaining, drained=not remaining)


def _remaining(engine: Engine) -> int:
    return len(engine.sequences) + len(engine.held) + len(engine.ending)
