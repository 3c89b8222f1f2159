"""Limits of keys that hold for all gateways together."""

from __future__ import annotations

import asyncio
import logging

import grpc

from aegaeon.errors import ErrorReason
from aegaeon.rpc.status import from_rpc_error
from aegaeon.security.budgets import Budget, Budgets, used_up
from aegaeon.security.guard import Caller
from aegaeon.security.keys import Scope
from aegaeon.v1 import inference_pb2, inference_pb2_grpc

_log = logging.getLogger(__name__)

#: For the scheduler's answer, in seconds; a request waits for it.
_PATIENCE_S = 2.0


class SharedBudgets:
    """Asks the scheduler, where all gateways meet. While it does not answer, or is of a release
    that keeps no budgets, this process keeps them by itself. Belongs to one event loop."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = inference_pb2_grpc.InferenceServiceStub(channel)
        self._own = Budgets()
        self._alone = False
        self._running: set[asyncio.Task[None]] = set()

    async def admit(self, caller: Caller, model: str, prompt_tokens: int) -> Budget | None:
        """Count a request; what its generated tokens are to be taken from. Raises what refuses it;
        ResourceExhaustedError says until when."""
        caller.require(Scope.GENERATE)
        caller.check_model(model)
        budget = caller.budget()
        if budget is not None and not await self._ask(budget, 1, prompt_tokens, used=False):
            self._own.take(budget, 1, prompt_tokens)
        return budget

    def spend(self, budget: Budget | None, tokens: int) -> asyncio.Task[None] | None:
        """Count generated tokens; done with the task that is returned, if there is anything to do.
        Nobody has to wait for it."""
        if budget is None or not budget.tokens_per_minute or not tokens:
            return None
        task = asyncio.get_running_loop().create_task(self._spend(budget, tokens))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def close(self) -> None:
        """Return when everything has been counted."""
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _spend(self, budget: Budget, tokens: int) -> None:
        if not await self._ask(budget, 0, tokens, used=True):
            self._own.owe(budget, 0, tokens)

    async def _ask(self, budget: Budget, requests: int, tokens: int, *, used: bool) -> bool:
        """Whether the scheduler has counted it. Raises ResourceExhaustedError when it refused."""
        request = inference_pb2.UseBudgetRequest(
            holder=budget.holder,
            requests_per_minute=budget.requests_per_minute or 0,
            tokens_per_minute=budget.tokens_per_minute or 0,
            requests=requests,
            tokens=tokens,
            used=used,
        )
        try:
            await self._stub.UseBudget(request, timeout=_PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            problem = from_rpc_error(error)
            limit = problem.metadata.get("limit", "")
            if problem.reason is ErrorReason.QUEUE_FULL and problem.retry_after_s is not None:
                value = int(problem.metadata["value"])
                raise used_up(budget.name, limit, value, problem.retry_after_s) from error
            self._tell(alone=True, why=str(problem))
            return False
        self._tell(alone=False)
        return True

    def _tell(self, *, alone: bool, why: str = "") -> None:
        if alone and not self._alone:
            _log.warning("limits of keys hold in this process alone for now: %s", why)
        elif self._alone and not alone:
            _log.info("limits of keys hold for all gateways together again")
        self._alone = alone
