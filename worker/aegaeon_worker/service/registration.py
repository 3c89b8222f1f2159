"""The worker's side of registration: register, renew, register again after a loss."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

import grpc

from aegaeon.capability import from_numbers
from aegaeon.errors import AegaeonError, ErrorReason, UnavailableError
from aegaeon.rpc.channel import open_channel
from aegaeon.rpc.needs import SCHEDULER, check_scheduler
from aegaeon.rpc.status import from_rpc_error
from aegaeon.rpc.version import check_version
from aegaeon.security.settings import SecuritySettings
from aegaeon.v1 import cluster_pb2, cluster_pb2_grpc

logger = logging.getLogger(__name__)

_RETRY_S = 0.2
_CALL_TIMEOUT_S = 5.0
_RENEWALS_PER_TTL = 3


class Registration:
    """Keeps one worker registered until closed.

    While the scheduler is unreachable it keeps trying for ``timeout_s``, since the caches here are
    worth keeping. Then it gives up, as it does at once when the scheduler refuses the worker for
    good (another contract version).
    """

    def __init__(
        self,
        scheduler: str,
        request: cluster_pb2.RegisterWorkerRequest,
        security: SecuritySettings,
        timeout_s: float,
    ) -> None:
        self._scheduler = scheduler
        self._request = request
        self._timeout_s = timeout_s
        self._channel = open_channel(scheduler, security)
        self._stub = cluster_pb2_grpc.ClusterServiceStub(self._channel)
        self._epoch = 0
        #: Since when the scheduler has not answered; None while it does. Counted from the first
        #: call that failed, so that a worker that was stopped itself is not misled.
        self._silent_since: float | None = None
        self._look = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="registration")

    async def wait_refused(self) -> AegaeonError:
        """Return when the scheduler has refused this worker for good, or has been away for too
        long; otherwise never."""
        return await asyncio.shield(self._task)

    def look_now(self) -> None:
        """The scheduler's stream has ended: ask at once whether the registration still holds."""
        self._look.set()

    async def close(self) -> None:
        """Say goodbye, best effort."""
        self._task.cancel()
        if self._epoch:
            goodbye = cluster_pb2.DeregisterWorkerRequest(epoch=self._epoch)
            try:
                await self._stub.DeregisterWorker(goodbye, timeout=1.0)
            except grpc.aio.AioRpcError as error:
                logger.info("could not deregister: %s", error.details())
        await self._channel.close(grace=None)

    async def _run(self) -> AegaeonError:
        while (refusal := self._gave_up()) is None:
            try:
                response = await self._stub.RegisterWorker(self._request, timeout=_CALL_TIMEOUT_S)
            except grpc.aio.AioRpcError as rpc_error:
                error = from_rpc_error(rpc_error)
                if error.reason in (ErrorReason.CONTRACT_MISMATCH, ErrorReason.INVALID_FIELD):
                    return error
                logger.debug("registration failed, trying again: %s", error)
                self._note_silence()
                await asyncio.sleep(_RETRY_S)
                continue
            self._silent_since = None
            self._epoch = response.epoch
            try:
                check_version(response.contract_version or 1, peer="scheduler")
                check_scheduler(SCHEDULER.needs(self._request), from_numbers(response.capabilities))
            except AegaeonError as mismatch:
                return mismatch
            logger.info("registered under epoch %d", self._epoch)
            await self._renew_until_lost(response.lease_ttl_ns / 1e9)
        return refusal

    async def _renew_until_lost(self, ttl_s: float) -> None:
        deadline, delay_s = time.monotonic() + ttl_s, ttl_s / _RENEWALS_PER_TTL
        self._look.clear()
        await asyncio.sleep(
            min(_RETRY_S, delay_s)
        )  # also where a stream breaks as soon as it is open
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._look.wait(), delay_s)
            self._look.clear()
            request = cluster_pb2.RenewLeaseRequest(epoch=self._epoch)
            try:
                response = await self._stub.RenewLease(request, timeout=ttl_s)
            except grpc.aio.AioRpcError as rpc_error:
                error = from_rpc_error(rpc_error)
                if error.reason is ErrorReason.STALE_LEASE:
                    self._silent_since = None
                    logger.warning("epoch %d is lost: %s", self._epoch, error)
                    return
                self._note_silence()
                if time.monotonic() > deadline:
                    logger.warning("epoch %d is lost: %s", self._epoch, error)
                    return
                delay_s = _RETRY_S  # a restarted scheduler should not have to wait for us
            else:
                self._silent_since = None
                ttl_s = response.lease_ttl_ns / 1e9
                deadline, delay_s = time.monotonic() + ttl_s, ttl_s / _RENEWALS_PER_TTL

    def _note_silence(self) -> None:
        if self._silent_since is None:
            self._silent_since = time.monotonic()

    def _gave_up(self) -> AegaeonError | None:
        if self._silent_since is None or time.monotonic() - self._silent_since < self._timeout_s:
            return None
        return UnavailableError(
            f"the scheduler at {self._scheduler} has not answered for {self._timeout_s:g} s "
            "(--scheduler-timeout-s); this worker ends",
            reason=ErrorReason.SHUTTING_DOWN,
        )
