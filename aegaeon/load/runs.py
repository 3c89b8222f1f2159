"""Running load against a cluster, through its gateway or by gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Protocol, Self

import httpx

from aegaeon.client.backend import open_request
from aegaeon.client.connection import Connection
from aegaeon.client.gateway import get, open_client
from aegaeon.client.session import Session
from aegaeon.errors import AegaeonError, NotFoundError, NotRunningError, UnavailableError
from aegaeon.load.arrivals import Limits, LoadModel, requests_of
from aegaeon.load.http_load import ask
from aegaeon.load.report import LoadReport, report
from aegaeon.replay import Outcome, ReplayRecord, run_replay, to_record
from aegaeon.request import Request
from aegaeon.v1 import model_pb2
from aegaeon.workload import WorkloadEntry


class LoadTarget(Protocol):
    """What gets the load; to be entered first."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def models(self) -> list[LoadModel]:
        """Those that are ready, by name."""

    async def ask(self, request: Request) -> Outcome:
        """Its steps, or the error that ended it."""


@dataclass
class Run:
    """One run, with every request of it."""

    report: LoadReport
    requests: list[Request]
    records: list[ReplayRecord]


class HttpTarget:
    """A gateway; times are those at which this client got the tokens."""

    def __init__(self, url: str) -> None:
        self._client: httpx.AsyncClient = open_client(url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def models(self) -> list[LoadModel]:
        """See `LoadTarget`."""
        found = await get(self._client, "/v1/models")
        return [
            LoadModel(one["id"], one["vocab_size"], one["max_model_len"])
            for one in found["data"]
            if one["ready"]
        ]

    async def ask(self, request: Request) -> Outcome:
        """See `LoadTarget`."""
        return await ask(self._client, request)


class GrpcTarget:
    """A scheduler; times are those at which it got the tokens."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._address, self._timeout_s = address, timeout_s
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._connection = Connection(self._address)
        self._stack.push_async_callback(self._connection.close)
        self._session = await self._stack.enter_async_context(Session(self._connection.channel))
        try:
            await self._connection.wait_connected(self._timeout_s)
        except UnavailableError as error:
            await self._stack.aclose()
            raise NotRunningError(error.message) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def models(self) -> list[LoadModel]:
        """See `LoadTarget`."""
        ready = model_pb2.REPLICA_STATE_READY
        return [
            LoadModel(one.spec.name, one.facts.vocab_size, one.facts.max_model_len)
            for one in await self._connection.list_models()
            if any(replica.state == ready for replica in one.replicas)
        ]

    async def ask(self, request: Request) -> Outcome:
        """See `LoadTarget`."""
        pending = open_request(self._session, request)
        if isinstance(pending, AegaeonError):
            return pending
        try:
            return await pending.result()
        except asyncio.CancelledError:
            self._session.cancel(pending)
            raise
        except AegaeonError as error:
            return error


async def find_models(target: LoadTarget, names: Sequence[str] | None) -> list[LoadModel]:
    """The named models, or all that are ready. Raises NotFoundError."""
    ready = {model.name: model for model in await target.models()}
    missing = [name for name in names or () if name not in ready]
    if missing or not ready:
        there = ", ".join(ready) or "none"
        raise NotFoundError(
            f"not ready: {', '.join(missing) or 'any model'}; ready: {there}; deploy with "
            "`aegaeon deploy`"
        )
    return [ready[name] for name in names] if names else list(ready.values())


async def run(
    target: LoadTarget,
    title: str,
    rate: float | None,
    entries: Sequence[WorkloadEntry],
    models: Sequence[LoadModel],
    limits: Limits,
    seed: int,
) -> Run:
    """Send every request at its time, whatever became of those before, and wait for all."""
    requests = requests_of(entries, models, limits, seed)
    outcomes = await run_replay(requests, target.ask)
    begin = min(arrival for arrival, _ in outcomes)
    records = [
        to_record(request, arrival, begin, outcome)
        for request, (arrival, outcome) in zip(requests, outcomes, strict=True)
    ]
    errors = [outcome.name for _, outcome in outcomes if isinstance(outcome, AegaeonError)]
    return Run(report(title, rate, records, requests, errors), requests, records)
