"""InferenceService: one request per call, or many over one session."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

from aegaeon.capability import OF_SCHEDULER
from aegaeon.errors import AegaeonError, InvalidRequestError
from aegaeon.rpc.needs import contract_names
from aegaeon.rpc.status import abort
from aegaeon.security.budgets import Budget, Budgets
from aegaeon.security.guard import current_caller
from aegaeon.v1 import inference_pb2, inference_pb2_grpc
from aegaeon_scheduler.service.deltas import generate_response
from aegaeon_scheduler.service.driver import Driver
from aegaeon_scheduler.service.intake import checked_request
from aegaeon_scheduler.service.session import Session

#: As the contract bounds it.
_MAX_HOLDER_BYTES = 128


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """Tokens in, tokens out."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        #: By the name of the caller's key, so that what others call as they like is never what this
        #: one does, and nobody takes the room of others.
        self._budgets: defaultdict[str, Budgets] = defaultdict(Budgets)

    async def Generate(  # type: ignore[override]  # noqa: N802
        self, request: inference_pb2.GenerateRequest, context: Any
    ) -> None:
        """Stream one request; a slow reader gets fewer, larger messages."""
        caller = current_caller.get()
        try:
            caller.admit(request.model, len(request.prompt_token_ids))
            request.cache_salt = caller.own_salt(request.cache_salt)
            asked = await self._driver.rejoining.until_taken(await checked_request(request))
        except AegaeonError as error:
            await abort(context, error)
        ready = asyncio.Event()
        backlog = self._driver.open_backlog(ready.set)
        try:
            sequence = self._driver.submit(asked, backlog)
        except AegaeonError as error:
            self._driver.close_backlog(backlog)
            await abort(context, error)
        try:
            while True:
                await ready.wait()
                await self._driver.pacer.turn()
                ready.clear()
                parcel = backlog.take()
                if parcel is None:
                    continue
                if backlog.announced:
                    ready.set()
                message = generate_response(parcel, self._driver.unix_offset_ns)
                if parcel.tokens or parcel.prompts or message.finish_reason:
                    await context.write(message)
                if sequence.error is not None:
                    await abort(context, sequence.error)
                if message.finish_reason:
                    return
                self._driver.caught_up(backlog)
        finally:
            self._driver.close_backlog(backlog)
            self._driver.release(sequence)
            caller.spend(sequence.made)

    async def Session(  # type: ignore[override]  # noqa: N802
        self,
        request_iterator: AsyncIterator[inference_pb2.SessionRequest],
        context: Any,
    ) -> None:
        """Carry many requests; the tokens of all of them share messages."""
        session = Session(self._driver)
        try:
            await session.run(request_iterator, context.write)
        except AegaeonError as error:
            await abort(context, error)
        finally:
            session.close()

    async def GetCapabilities(  # noqa: N802
        self, request: inference_pb2.GetCapabilitiesRequest, context: Any
    ) -> inference_pb2.GetCapabilitiesResponse:
        """What this release understands and others may not."""
        return inference_pb2.GetCapabilitiesResponse(capabilities=contract_names(OF_SCHEDULER))

    async def UseBudget(  # noqa: N802
        self, request: inference_pb2.UseBudgetRequest, context: Any
    ) -> inference_pb2.UseBudgetResponse:
        """Count what is used behind several gateways."""
        try:
            budget = _budget(request)
            budgets = self._budgets[current_caller.get().name]
            if request.used:
                budgets.owe(budget, request.requests, request.tokens)
            else:
                budgets.take(budget, request.requests, request.tokens)
        except AegaeonError as error:
            await abort(context, error)
        return inference_pb2.UseBudgetResponse()


def _budget(request: inference_pb2.UseBudgetRequest) -> Budget:
    size = len(request.holder.encode())
    if not 1 <= size <= _MAX_HOLDER_BYTES:
        raise InvalidRequestError(
            f"holder has {size} bytes; it must have 1 to {_MAX_HOLDER_BYTES}",
            metadata={"field": "holder"},
        )
    limits = request.requests_per_minute, request.tokens_per_minute
    return Budget(request.holder, request.holder, *limits)
