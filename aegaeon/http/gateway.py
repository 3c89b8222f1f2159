"""What all requests of a gateway process share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from aegaeon.client.connection import Connection
from aegaeon.client.session import Session
from aegaeon.http.answers import Answer
from aegaeon.http.generation import Form, Generation, Output
from aegaeon.http.models import ModelTable, ServedModel
from aegaeon.http.schemas import GenerationBody
from aegaeon.http.streaming import EventStream, merged, started, unless_gone
from aegaeon.http.tokenizing import TokenizerPool


class Gateway:
    """One connection, and one session for all requests, which survives the scheduler's restarts.

    Belongs to the event loop that it is made on. Silent streams get a comment every ``heartbeat_s``
    seconds.
    """

    def __init__(self, scheduler: str, heartbeat_s: float) -> None:
        self.connection = Connection(scheduler)
        self.session = Session(self.connection.channel)
        self.pool = TokenizerPool()
        self.models = ModelTable(self.connection, self.pool)
        self.heartbeat_s = heartbeat_s
        #: Set when the process is to stop; streams without an end then end.
        self.stopping = asyncio.Event()

    async def close(self) -> None:
        """Cancel what runs, close the channel."""
        self.stopping.set()
        await self.session.close()
        await self.connection.close()
        self.pool.close()

    async def respond(
        self,
        request: Request,
        body: GenerationBody,
        model: ServedModel,
        prompts: Sequence[Sequence[int]],
        form: Form,
        answer: Answer,
    ) -> Response:
        """Generate ``body.n`` sequences per prompt. A caller that leaves cancels all of them."""
        label: str = request.scope["aegaeon.request_id"]
        generations: list[Generation] = []

        def close() -> None:
            for generation in generations:
                generation.close()

        try:
            for prompt in prompts:
                for number in range(body.n or 1):
                    generations.append(
                        Generation(self.session, model, body, prompt, form, label, number)
                    )
            if not body.stream:
                outputs = await unless_gone(request, _outputs(generations))
                return JSONResponse(answer.whole(outputs))
            deltas = await started(request, merged(generations))
        except BaseException:
            close()
            raise
        return EventStream(answer.events(deltas), self.heartbeat_s, close)


async def _outputs(generations: Sequence[Generation]) -> list[Output]:
    return list(await asyncio.gather(*(generation.output() for generation in generations)))
