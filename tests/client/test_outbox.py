"""What a session sends: neighbouring submissions together, everything in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from aegaeon.capability import NO_CAPABILITIES, OF_SCHEDULER, Capabilities
from aegaeon.client import outbox as module
from aegaeon.client.outbox import Outbox
from aegaeon.errors import AegaeonError
from aegaeon.v1 import inference_pb2

_DEADLINE_S = 10.0


def submission(stream_id: int, tokens: int = 1) -> inference_pb2.SessionSubmit:
    request = inference_pb2.GenerateRequest(prompt_token_ids=[7] * tokens)
    return inference_pb2.SessionSubmit(stream_id=stream_id, request=request)


def _refuse(stream_id: int, error: AegaeonError) -> None:
    raise AssertionError(f"{stream_id} is refused: {error}")


def sent(
    fill: Callable[[Outbox], None], known: Capabilities = OF_SCHEDULER
) -> list[inference_pb2.SessionRequest]:
    """All messages of what ``fill`` puts in, for a scheduler that knows this; it must end with a
    cancel of stream 0, and nothing is refused."""

    async def collect() -> list[inference_pb2.SessionRequest]:
        outbox = Outbox()
        fill(outbox)
        found = []
        async with asyncio.timeout(_DEADLINE_S):
            async for message in outbox.messages(known, _refuse):
                if message.HasField("cancel") and message.cancel.stream_id == 0:
                    break
                found.append(message)
        return found

    return asyncio.run(collect())


_ENTRIES = st.lists(st.tuples(st.booleans(), st.integers(1, 60_000)), max_size=40)


@given(_ENTRIES)
def test_everything_leaves_once_in_order_and_in_bounded_messages(
    entries: list[tuple[bool, int]],
) -> None:
    def fill(outbox: Outbox) -> None:
        for number, (is_submit, tokens) in enumerate(entries, 1):
            outbox.put(
                submission(number, tokens)
                if is_submit
                else inference_pb2.SessionCancel(stream_id=number)
            )
        outbox.put(inference_pb2.SessionCancel(stream_id=0))

    messages = sent(fill)
    order: list[tuple[bool, int]] = []
    for message in messages:
        submits = message.submits.submits
        order += [(True, submit.stream_id) for submit in submits]
        if not submits:
            order.append((False, message.cancel.stream_id))
        tokens = sum(len(submit.request.prompt_token_ids) for submit in submits)
        assert len(submits) == 1 or tokens <= module._MAX_MESSAGE_TOKENS
    assert order == [(is_submit, number) for number, (is_submit, _) in enumerate(entries, 1)]


def test_submissions_made_together_leave_in_one_message() -> None:
    def fill(outbox: Outbox) -> None:
        for number in range(1, 9):
            outbox.put(submission(number))
        outbox.put(inference_pb2.SessionCancel(stream_id=0))

    (message,) = sent(fill)
    assert [submit.stream_id for submit in message.submits.submits] == list(range(1, 9))


@given(st.lists(st.booleans(), max_size=40))
def test_everything_leaves_on_its_own_where_groups_are_not_understood(entries: list[bool]) -> None:
    def fill(outbox: Outbox) -> None:
        for number, is_submit in enumerate(entries, 1):
            outbox.put(
                submission(number) if is_submit else inference_pb2.SessionCancel(stream_id=number)
            )
        outbox.put(inference_pb2.SessionCancel(stream_id=0))

    order = []
    for message in sent(fill, NO_CAPABILITIES):
        kind = message.WhichOneof("message")
        assert kind in ("submit", "cancel")
        order.append((kind == "submit", getattr(message, kind).stream_id))
    assert order == [(is_submit, number) for number, is_submit in enumerate(entries, 1)]
