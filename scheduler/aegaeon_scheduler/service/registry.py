"""Registrations and leases of workers."""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from functools import partial

from aegaeon.errors import AegaeonError, ErrorReason, InvalidRequestError, PreconditionError
from aegaeon.rpc.version import check_version
from aegaeon.security.settings import PLAIN, SecuritySettings
from aegaeon.v1 import cluster_pb2
from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.values import WorkerIdentity
from aegaeon_scheduler.service.convert import worker_identity
from aegaeon_scheduler.service.driver import Driver
from aegaeon_scheduler.service.worker_link import WorkerLink

_ADDRESS = re.compile(r"unix:.+|[^\s/]+:\d{1,5}")
_MAX_NODE_ID = 128
#: Processes remembered per place of a worker; more than restarts at one place that overlap.
_REMEMBERED = 16


@dataclass(slots=True)
class _Lease:
    """When its worker was last heard, by the loop's clock, and the timer that looks at that."""

    heard_s: float
    timer: asyncio.TimerHandle


class Registry:
    """Which worker may speak: every registration has an epoch, and every epoch a lease.

    Renewals and events of the command stream alike show that a worker lives.
    """

    def __init__(
        self, driver: Driver, lease_ttl_ns: int, security: SecuritySettings = PLAIN
    ) -> None:
        self.lease_ttl_ns = lease_ttl_ns
        self._security = security
        self._driver = driver
        # Above every epoch of an earlier scheduler, or its workers would refuse the stream.
        self._last_epoch = time.time_ns() // 1_000_000
        self._leases: dict[int, _Lease] = {}
        #: Incarnations that another process has replaced, by node and index.
        self._replaced: defaultdict[tuple[str, int], deque[str]] = defaultdict(
            lambda: deque(maxlen=_REMEMBERED)
        )

    def register(self, message: cluster_pb2.RegisterWorkerRequest) -> int:
        """Accept a worker, and dial it if it is rank 0; returns its epoch."""
        identity = _checked(message)
        self._replace(identity)
        self._last_epoch += 1
        epoch = self._last_epoch
        self._driver.apply(events.WorkerRegistered(epoch, identity))
        now = asyncio.get_running_loop().time()
        self._leases[epoch] = _Lease(now, self._timer(epoch, now))
        if not identity.rank:  # which drives the others of its engine
            on_event = partial(self._on_event, epoch)
            self._driver.connect(WorkerLink(epoch, identity.address, on_event, self._security))
        return epoch

    def renew(self, epoch: int) -> None:
        """Keep a registration alive."""
        lease = self._leases.get(epoch)
        state = self._driver.cluster.state
        if lease is None or not (epoch in state.engines or epoch in state.followers):
            raise PreconditionError(
                f"the lease of epoch {epoch} has ended; register again",
                reason=ErrorReason.STALE_LEASE,
            )
        lease.heard_s = asyncio.get_running_loop().time()

    def deregister(self, epoch: int) -> None:
        """A worker says goodbye."""
        self._end(epoch, "it said goodbye")

    def close(self) -> None:
        """Stop all timers."""
        for lease in self._leases.values():
            lease.timer.cancel()
        self._leases.clear()

    def _replace(self, identity: WorkerIdentity) -> None:
        """Let a later process have an earlier one's place, and never the other way round: two that
        live would take it from each other for ever."""
        node = self._driver.cluster.state.nodes.get(identity.node_id)
        known = None if node is None else node.registered(identity.worker_index)
        if known is None or known.identity.incarnation == identity.incarnation:
            return
        replaced = self._replaced[identity.node_id, identity.worker_index]
        if identity.incarnation in replaced:
            raise _field(
                "worker_index",
                identity.worker_index,
                f"one of its own on node {identity.node_id!r}: process {known.identity.pid} "
                "registered there later, and serves",
            )
        replaced.append(known.identity.incarnation)

    def _on_event(self, epoch: int, event: events.Event) -> None:
        if isinstance(event, events.WorkerLost):
            self._end(epoch, event.reason)
            return
        lease = self._leases.get(epoch)
        if lease is not None:
            lease.heard_s = asyncio.get_running_loop().time()
        self._driver.apply(event)

    def _timer(self, epoch: int, heard_s: float) -> asyncio.TimerHandle:
        due_s = heard_s + self.lease_ttl_ns / 1e9
        return asyncio.get_running_loop().call_at(due_s, self._look, epoch, due_s)

    def _look(self, epoch: int, due_s: float) -> None:
        lease = self._leases[epoch]
        now, ttl_s = asyncio.get_running_loop().time(), self.lease_ttl_ns / 1e9
        if now - due_s > ttl_s / 4:
            # This process itself was held up: signs of life may lie unread in its sockets.
            lease.timer = self._timer(epoch, now)
        elif now < lease.heard_s + ttl_s:
            lease.timer = self._timer(epoch, lease.heard_s)
        else:
            self._end(epoch, f"it gave no sign of life for {ttl_s:g} s")

    def _end(self, epoch: int, reason: str) -> None:
        lease = self._leases.pop(epoch, None)
        if lease is not None:
            lease.timer.cancel()
        self._driver.apply(events.WorkerLost(epoch, reason))


def _checked(message: cluster_pb2.RegisterWorkerRequest) -> WorkerIdentity:
    check_version(message.contract_version, peer="worker")
    if not 1 <= len(message.node_id) <= _MAX_NODE_ID:
        raise _field("node_id", message.node_id, "1 to 128 characters")
    if not _ADDRESS.fullmatch(message.address):
        raise _field("address", message.address, "host:port or unix:path")
    if message.max_batch_sequences < 1:
        raise _field("max_batch_sequences", message.max_batch_sequences, "at least 1")
    if message.role not in cluster_pb2.EngineRole.values():
        raise _field("role", message.role, "an EngineRole of this contract version")
    return worker_identity(message)


def _field(name: str, value: object, rule: str) -> AegaeonError:
    return InvalidRequestError(
        f"{name} is {value!r}; it must be {rule}", metadata={"field": name, "value": value}
    )
