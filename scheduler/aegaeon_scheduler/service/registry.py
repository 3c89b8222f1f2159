"""Registrations and leases of workers."""

from __future__ import annotations

import asyncio
import re
import time

from aegaeon.errors import AegaeonError, ErrorReason, InvalidRequestError, PreconditionError
from aegaeon.rpc.channel import CONTRACT_VERSION
from aegaeon.v1 import cluster_pb2
from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.values import WorkerIdentity
from aegaeon_scheduler.service.convert import worker_identity
from aegaeon_scheduler.service.driver import Driver
from aegaeon_scheduler.service.worker_link import WorkerLink

_ADDRESS = re.compile(r"unix:.+|[^\s/]+:\d{1,5}")
_MAX_NODE_ID = 128


class Registry:
    """Which worker may speak: every registration has an epoch, and every epoch a lease."""

    def __init__(self, driver: Driver, lease_ttl_ns: int) -> None:
        self.lease_ttl_ns = lease_ttl_ns
        self._driver = driver
        # Above every epoch of an earlier scheduler, or its workers would refuse the stream.
        self._last_epoch = time.time_ns() // 1_000_000
        self._leases: dict[int, asyncio.TimerHandle] = {}

    def register(self, message: cluster_pb2.RegisterWorkerRequest) -> int:
        """Accept a worker and dial it; returns its epoch."""
        identity = _checked(message)
        self._last_epoch += 1
        epoch = self._last_epoch
        self._driver.apply(events.WorkerRegistered(epoch, identity))
        self._arm(epoch)
        self._driver.connect(WorkerLink(epoch, identity.address, self._on_event))
        return epoch

    def renew(self, epoch: int) -> None:
        """Keep a registration alive."""
        lease = self._leases.get(epoch)
        if lease is None or epoch not in self._driver.cluster.state.engines:
            raise PreconditionError(
                f"the lease of epoch {epoch} has ended; register again",
                reason=ErrorReason.STALE_LEASE,
            )
        lease.cancel()
        self._arm(epoch)

    def deregister(self, epoch: int) -> None:
        """A worker says goodbye."""
        self._end(epoch, "it said goodbye")

    def close(self) -> None:
        """Stop all timers."""
        for lease in self._leases.values():
            lease.cancel()
        self._leases.clear()

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.WorkerLost):
            self._end(event.epoch, event.reason)
        else:
            self._driver.apply(event)

    def _arm(self, epoch: int) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self.lease_ttl_ns / 1e9
        self._leases[epoch] = loop.call_at(due, self._expire, epoch, due)

    def _expire(self, epoch: int, due: float) -> None:
        # When this process itself was held up, renewals may lie unread in its sockets.
        if asyncio.get_running_loop().time() - due > self.lease_ttl_ns / 4e9:
            self._arm(epoch)
        else:
            self._end(epoch, "its lease ended")

    def _end(self, epoch: int, reason: str) -> None:
        lease = self._leases.pop(epoch, None)
        if lease is not None:
            lease.cancel()
        self._driver.apply(events.WorkerLost(epoch, reason))


def _checked(message: cluster_pb2.RegisterWorkerRequest) -> WorkerIdentity:
    if message.contract_version != CONTRACT_VERSION:
        raise PreconditionError(
            f"the worker speaks contract version {message.contract_version}, the scheduler "
            f"{CONTRACT_VERSION}; install the same release on both",
            reason=ErrorReason.CONTRACT_MISMATCH,
            metadata={"ours": CONTRACT_VERSION, "theirs": message.contract_version},
        )
    if not 1 <= len(message.node_id) <= _MAX_NODE_ID:
        raise _field("node_id", message.node_id, "1 to 128 characters")
    if not _ADDRESS.fullmatch(message.address):
        raise _field("address", message.address, "host:port or unix:path")
    if message.max_batch_sequences < 1:
        raise _field("max_batch_sequences", message.max_batch_sequences, "at least 1")
    return worker_identity(message)


def _field(name: str, value: object, rule: str) -> AegaeonError:
    return InvalidRequestError(
        f"{name} is {value!r}; it must be {rule}", metadata={"field": name, "value": value}
    )
