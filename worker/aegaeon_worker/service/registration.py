"""The worker's side of registration: register, renew, register again after a loss."""

from __future__ import annotations

import asyncio
import logging
import time

import grpc

from aegaeon.errors import AegaeonError, ErrorReason
from aegaeon.rpc.channel import open_channel
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

    While the scheduler is unreachable it keeps trying, since the caches here are worth keeping;
    a scheduler that refuses the worker for good (another contract version) ends it instead.
    """

    def __init__(
        self,
        scheduler: str,
        request: cluster_pb2.RegisterWorkerRequest,
        security: SecuritySettings,
    ) -> None:
        self._request = request
        self._channel = open_channel(scheduler, security)
        self._stub = cluster_pb2_grpc.ClusterServiceStub(self._channel)
        self._epoch = 0
        self._task = asyncio.create_task(self._run(), name="registration")

    async def wait_refused(self) -> AegaeonError:
        """Return when the scheduler has refused this worker for good; otherwise never."""
        return await asyncio.shield(self._task)

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
        while True:
            try:
                response = await self._stub.RegisterWorker(self._request, timeout=_CALL_TIMEOUT_S)
            except grpc.aio.AioRpcError as rpc_error:
                error = from_rpc_error(rpc_error)
                if error.reason in (ErrorReason.CONTRACT_MISMATCH, ErrorReason.INVALID_FIELD):
                    return error
                logger.debug("registration failed, trying again: %s", error)
                await asyncio.sleep(_RETRY_S)
                continue
            self._epoch = response.epoch
            try:
                check_version(response.contract_version or 1, peer="scheduler")
            except AegaeonError as mismatch:
                return mismatch
            logger.info("registered under epoch %d", self._epoch)
            await self._renew_until_lost(response.lease_ttl_ns / 1e9)

    async def _renew_until_lost(self, ttl_s: float) -> None:
        deadline, delay_s = time.monotonic() + ttl_s, ttl_s / _RENEWALS_PER_TTL
        while True:
            await asyncio.sleep(delay_s)
            request = cluster_pb2.RenewLeaseRequest(epoch=self._epoch)
            try:
                response = await self._stub.RenewLease(request, timeout=ttl_s)
            except grpc.aio.AioRpcError as rpc_error:
                error = from_rpc_error(rpc_error)
                if error.reason is ErrorReason.STALE_LEASE or time.monotonic() > deadline:
                    logger.warning("epoch %d is lost: %s", self._epoch, error)
                    return
                delay_s = _RETRY_S  # a restarted scheduler should not have to wait for us
            else:
                ttl_s = response.lease_ttl_ns / 1e9
                deadline, delay_s = time.monotonic() + ttl_s, ttl_s / _RENEWALS_PER_TTL
