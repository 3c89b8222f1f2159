"""Everything that a service owns and that must end with it: daemons, loop, channel."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from aegaeon.client.connection import Connection
from aegaeon.client.loop_thread import LoopThread
from aegaeon.client.messages import timeout_ns, to_generate_request
from aegaeon.client.pending import PendingRequest
from aegaeon.client.policies import Policies
from aegaeon.client.session import Session
from aegaeon.client.startup import initialise
from aegaeon.client.token_stream import TokenStream
from aegaeon.deployment import DeployProgress
from aegaeon.errors import AegaeonError, UnavailableError
from aegaeon.local.cluster import LocalCluster
from aegaeon.node_config import NodeConfig
from aegaeon.replay import run_replay
from aegaeon.request import Request
from aegaeon.security.settings import SecuritySettings
from aegaeon.step_output import StepOutput

T = TypeVar("T")

_log = logging.getLogger(__name__)
_WATCH_S = 0.2


class Backend:
    """Ready to serve when it is made; raises with nothing left behind. ``close`` is idempotent."""

    def __init__(
        self,
        nodes: Sequence[NodeConfig],
        address: str | None,
        policies: Policies,
        timeout_s: float,
        security: SecuritySettings,
        resume_window_s: float,
        daemon_restarts: int,
    ) -> None:
        self._resume_window_s = resume_window_s
        deadline = time.monotonic() + timeout_s
        self._cluster: LocalCluster | None = None
        self._loop: LoopThread | None = None
        try:
            # Children first: no gRPC thread of ours exists yet when they are started.
            if address is None:
                self._cluster = LocalCluster(nodes, policies.scheduling, deadline, daemon_restarts)
                address = self._cluster.address
            self._loop = LoopThread("aegaeon-client")
            self.connection = self._loop.run(_connect(address, security))
            startup = initialise(
                self.connection,
                nodes,
                policies,
                demand_memory=self._cluster is None,
                deadline=deadline,
                on_progress=_log_progress,
            )
            self._loop.run(self._watched(startup))
        except BaseException:
            self.close()
            raise

    @property
    def loop(self) -> LoopThread:
        """The loop that channel and sessions belong to."""
        if self._loop is None:
            raise AegaeonError("the service is closed")
        return self._loop

    def close(self) -> None:
        """Cancel requests, close the channel, end the daemons, remove what they left."""
        if self._loop is not None and self._loop.is_current():
            # A finalizer that the collector happened to run here; waiting would never end.
            threading.Thread(target=self.close, name="aegaeon-close").start()
            return
        loop, self._loop = self._loop, None
        try:
            if loop is not None:
                if hasattr(self, "connection"):
                    loop.run(self.connection.close())
                loop.stop()
        finally:
            if self._cluster is not None:
                self._cluster.stop()

    async def serve(self, requests: Sequence[Request]) -> list[list[StepOutput] | AegaeonError]:
        """One list of steps, or the error, per request in order."""
        async with self.session() as session:
            opened = [open_request(session, request) for request in requests]
            return [await self.outcome(one) for one in opened]

    async def replay(
        self, requests: Sequence[Request]
    ) -> list[tuple[float, list[StepOutput] | AegaeonError]]:
        """Serve requests at their arrival times; each one's arrival and outcome, in order."""
        async with self.session() as session:
            return await run_replay(
                requests, lambda request: self.outcome(open_request(session, request))
            )

    async def vocab_sizes(self, models: Iterable[str]) -> dict[str, int]:
        """Sizes of deployed models' vocabularies. Raises NotFoundError."""
        found = [await self.connection.get_model(name) for name in models]
        return {model.spec.name: model.facts.vocab_size for model in found}

    async def outcome(
        self, pending: PendingRequest | AegaeonError
    ) -> list[StepOutput] | AegaeonError:
        """The request's steps, or the error that ended it."""
        if isinstance(pending, AegaeonError):
            return pending
        try:
            return await pending.result()
        except AegaeonError as error:
            return self.explain(error)

    def session(self) -> Session:
        """A new session with the scheduler."""
        check = None if self._cluster is None else self._cluster.check
        return Session(self.connection.channel, check=check, resume_window_s=self._resume_window_s)

    async def open_stream(self, request: Request) -> TokenStream:
        """A stream of its own for one request. Raises InvalidRequestError."""
        message, timeout = to_generate_request(request), timeout_ns(request)
        return TokenStream(self.session(), message, timeout)

    def explain(self, error: AegaeonError) -> AegaeonError:
        """The error, with the last words of daemons that have died."""
        if isinstance(error, UnavailableError) and self._cluster is not None:
            for death in self._cluster.deaths():
                error.add_note(str(death))
        return error

    async def _watched(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine; raise at once when no daemon of ours is left to answer it."""
        if self._cluster is None:
            return await coroutine
        task = asyncio.create_task(coroutine)
        try:
            while not (await asyncio.wait({task}, timeout=_WATCH_S))[0]:
                self._cluster.check()
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def open_request(session: Session, request: Request) -> PendingRequest | AegaeonError:
    """Submit a request; an error of its own is its outcome and nobody else's."""
    try:
        return session.submit(to_generate_request(request), timeout_ns(request))
    except AegaeonError as error:
        return error


async def _connect(address: str, security: SecuritySettings) -> Connection:
    return Connection(address, security)


def _log_progress(model: str, step: DeployProgress) -> None:
    # One line per change of state is news; the bytes in between are detail.
    if step.packed_bytes:
        packed = (step.packed_bytes, step.total_bytes)
        _log.debug("%s on %s: %s, %d of %d bytes", model, step.node_id, step.state, *packed)
    else:
        _log.info("%s on %s: %s", model, step.node_id, step.state)
