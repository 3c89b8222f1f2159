"""Cluster events to any number of watchers, none of which can hold up the others."""

from __future__ import annotations

import asyncio
from collections import deque

from aegaeon.v1 import cluster_pb2

#: Events that a watcher may be behind; the contract names the number.
MAX_BEHIND = 4096


class Subscription:
    """One watcher's queue."""

    def __init__(self) -> None:
        self.overflowed = False
        self.ended = False
        self._events: deque[cluster_pb2.ClusterEvent] = deque()
        self._ready = asyncio.Event()

    def push(self, event: cluster_pb2.ClusterEvent) -> None:
        """Append an event, unless the watcher is too far behind already."""
        if len(self._events) >= MAX_BEHIND:
            self.overflowed = True
        else:
            self._events.append(event)
        self._ready.set()

    def end(self) -> None:
        """No event will follow."""
        self.ended = True
        self._ready.set()

    async def next(self) -> list[cluster_pb2.ClusterEvent]:
        """Everything since the last call; waits for an event, or the end."""
        await self._ready.wait()
        self._ready.clear()
        events, self._events = list(self._events), deque()
        return events


class Broadcast:
    """Numbers events and hands them to the watchers."""

    def __init__(self) -> None:
        self._number = 0
        self._subscriptions: set[Subscription] = set()

    @property
    def watched(self) -> bool:
        """Whether anybody is listening."""
        return bool(self._subscriptions)

    def subscribe(self) -> Subscription:
        """A queue of the events from now on; give it back to `unsubscribe`."""
        subscription = Subscription()
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop filling a queue."""
        self._subscriptions.discard(subscription)

    def next_number(self) -> int:
        """The number of the next event; numbers grow also while nobody listens."""
        self._number += 1
        return self._number

    def publish(self, event: cluster_pb2.ClusterEvent) -> None:
        """Hand a numbered event to every watcher."""
        for subscription in self._subscriptions:
            subscription.push(event)
