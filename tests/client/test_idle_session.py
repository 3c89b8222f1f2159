"""A session that outlives streams between requests."""

from __future__ import annotations

import asyncio

from aegaeon.client.messages import to_generate_request
from aegaeon.client.session import Session
from aegaeon.request import Request
from aegaeon.rpc.channel import open_channel
from tests.client.conftest import RunningStub


async def test_a_request_after_an_idle_scheduler_has_restarted_is_served(stub: RunningStub) -> None:
    request = Request("echo", 0.0, 0, [1], 3)
    channel = open_channel(stub.address)
    async with Session(channel) as session:
        for _ in range(4):
            steps = await session.submit(to_generate_request(request)).result()
            assert [step.new_token_id for step in steps] == [2, 3, 4]
            state = channel.get_state()
            await asyncio.to_thread(stub.stop)
            await asyncio.wait_for(channel.wait_for_state_change(state), 10)
            await asyncio.to_thread(stub.start)
    await channel.close()
