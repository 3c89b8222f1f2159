"""The time after a scheduler's start in which workers of an earlier one come back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from aegaeon.errors import RequestTimeoutError, UnavailableError
from aegaeon_scheduler.core.admission import takes_requests
from aegaeon_scheduler.core.notices import Notice, ReplicaChanged
from aegaeon_scheduler.core.queue_limits import check_room
from aegaeon_scheduler.core.state import State
from aegaeon_scheduler.core.values import GenerationRequest

#: Parts that the window is waited for in. A process that is held up, which finds the registrations
#: of that time unread in its sockets, loses one part by it and not the window.
_PARTS = 8


class Rejoining:
    """Workers tell what they serve once they are back, so that until then what seems not to be
    deployed may only not be known yet. Whoever asks for such a thing waits here. Belongs to one
    event loop."""

    def __init__(self, state: State, window_ns: int) -> None:
        """The time to wait for them, from `begin` on; 0 for a scheduler that has no predecessor."""
        self._state = state
        self._window_s = window_ns / 1e9
        self._over = not window_ns
        self._declared = False
        self._refusal: UnavailableError | None = None
        #: Who waits, by the model that may come; those that wait for something else under "".
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._timer: asyncio.Task[None] | None = None
        #: Requests that wait, and their tokens.
        self._requests = 0
        self._tokens = 0

    @property
    def waiting(self) -> int:
        """Callers that wait."""
        return sum(map(len, self._waiters.values()))

    def begin(self) -> None:
        """The scheduler can be reached from now on."""
        if not self._over:
            self._timer = asyncio.get_running_loop().create_task(self._run())

    def end(self) -> None:
        """Nobody is expected any more."""
        self._over = True
        for name in self._waiters:
            self._wake(name)

    def close(self, refusal: UnavailableError) -> None:
        """Give up, and tell everybody who waits."""
        self._refusal = refusal
        self.end()
        if self._timer is not None:
            self._timer.cancel()

    def on_notice(self, notice: Notice) -> None:
        """Something has become known."""
        if isinstance(notice, ReplicaChanged):
            self._wake(notice.model)

    def topology_declared(self) -> None:
        """A client has named all nodes that take replicas, and their workers are here."""
        self._declared = True
        self._wake("")

    async def until_known(self, model: str) -> None:
        """Wait for a model with its facts, or for the end of the window. Raises UnavailableError
        when the scheduler stops, as all of these do."""
        models = self._state.models
        await self._wait(
            lambda: (
                any(self._state.replicas(model))
                and (known := models.get(model)) is not None
                and known.facts is not None
            ),
            model,
        )

    async def until_all_known(self) -> None:
        """Wait for the end of the window."""
        await self._wait(lambda: False)

    async def until_placeable(self) -> None:
        """Wait until it is known where replicas can go, and are already."""
        await self._wait(lambda: self._declared)

    def may_bring(self, request: GenerationRequest) -> bool:
        """Whether a request that its model does not take now may be taken in a moment."""
        now_ns = time.monotonic_ns()
        return not (self._over or takes_requests(self._state, request.model, request.needs, now_ns))

    async def until_taken(self, request: GenerationRequest) -> GenerationRequest:
        """The request, with what is left of its time, once its model takes requests or the window
        is over. Raises RequestTimeoutError, and ResourceExhaustedError where too many wait."""
        if not self.may_bring(request):
            return request
        tokens = len(request.prompt) + len(request.generated)
        start_ns = time.monotonic_ns()
        check_room(self._state, self._requests + 1, self._tokens + tokens, start_ns)
        self._requests += 1
        self._tokens += tokens
        try:
            async with asyncio.timeout(request.timeout_ns / 1e9 if request.timeout_ns else None):
                await self._wait(lambda: not self.may_bring(request), request.model)
        except TimeoutError:
            raise RequestTimeoutError(
                f"the request's deadline has passed, and no worker has come with model "
                f"{request.model!r} since the scheduler started"
            ) from None
        finally:
            self._requests -= 1
            self._tokens -= tokens
        if not request.timeout_ns:
            return request
        spent_ns = time.monotonic_ns() - start_ns
        return replace(request, timeout_ns=max(request.timeout_ns - spent_ns, 1))

    async def _wait(self, enough: Callable[[], bool], model: str = "") -> None:
        while not (self._over or enough()):
            waiter = asyncio.get_running_loop().create_future()
            waiters = self._waiters.setdefault(model, set())
            waiters.add(waiter)
            try:
                await waiter
            finally:
                waiters.discard(waiter)
                if not waiters and self._waiters.get(model) is waiters:
                    del self._waiters[model]
        if self._refusal is not None:
            raise self._refusal

    async def _run(self) -> None:
        for _ in range(_PARTS):
            await asyncio.sleep(self._window_s / _PARTS)
        # Those that have registered tell their models once they have been dialled.
        for _ in range(_PARTS):
            if all(engine.ready for engine in self._state.engines.values()):
                break
            await asyncio.sleep(self._window_s / _PARTS)
        self.end()

    def _wake(self, name: str) -> None:
        for waiter in self._waiters.get(name, ()):
            if not waiter.done():
                waiter.set_result(None)
