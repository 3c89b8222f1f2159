"""Bounded queues: requests and tokens, of one model and of all."""

from __future__ import annotations

from aegaeon.errors import ResourceExhaustedError
from aegaeon_scheduler.core.pace import Pace
from aegaeon_scheduler.core.state import Model, State

#: A model may hold so many times what is free, the dynamic threshold of Choudhury and Hahne
#: (IEEE/ACM Transactions on Networking 6(2), 1998): alone it gets 7/8 of all, n hot models share
#: evenly, and something is always left for one that comes. A lone model gets all.
FREE_MULTIPLE = 7


def check_limits(state: State, model: Model, tokens: int, now_ns: int) -> None:
    """Raise the error that refuses one more request of ``tokens``, with a time to come again."""
    config = state.config
    for name, value, limit in (
        ("max_requests_per_model", model.requests + 1, config.max_requests_per_model),
        ("max_tokens_per_model", model.tokens + tokens, config.max_tokens_per_model),
    ):
        if value > limit:
            raise _full(name, limit, value, model.pace, now_ns)
    for name, held, added, own, limit in (
        ("max_requests", len(state.sequences), 1, model.requests, config.max_requests),
        ("max_tokens", state.reserved_tokens, tokens, model.tokens, config.max_tokens),
    ):
        shared = len(state.models) > 1 and own + added > FREE_MULTIPLE * (limit - held)
        if held + added > limit or shared:
            raise _full(name, limit, held + added, state.pace, now_ns)


def check_room(state: State, requests: int, tokens: int, now_ns: int) -> None:
    """Raise the same error where so many more of whatever models go beyond what all may have."""
    for name, value, limit in (
        ("max_requests", len(state.sequences) + requests, state.config.max_requests),
        ("max_tokens", state.reserved_tokens + tokens, state.config.max_tokens),
    ):
        if value > limit:
            raise _full(name, limit, value, state.pace, now_ns)


def _full(name: str, limit: int, value: int, pace: Pace, now_ns: int) -> ResourceExhaustedError:
    retry_ms = pace.retry_ms(now_ns)
    kept = "" if value > limit else ", and what is left of it is for less busy models"
    return ResourceExhaustedError(
        f"the queue is full: {name} is {limit}{kept}, and this request would make it {value}; try "
        f"again in {retry_ms} ms",
        metadata={"limit": name, "value": limit, "retry_after_ms": retry_ms},
    )
