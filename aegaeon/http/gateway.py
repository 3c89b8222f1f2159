"""What all requests of a gateway process share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from aegaeon.client.connection import Connection
from aegaeon.client.session import Session
from aegaeon.http.answers import Answer
from aegaeon.http.generation import Form, Generation, Output
from aegaeon.http.models import ModelTable, ServedModel
from aegaeon.http.schemas import GenerationBody
from aegaeon.http.shared_budgets import SharedBudgets
from aegaeon.http.streaming import EventStream, merged, started, unless_gone
from aegaeon.http.tokenizing import TokenizerPool
from aegaeon.security.guard import current_caller
from aegaeon.security.model_rules import ModelRules
from aegaeon.security.settings import SecuritySettings


class Gateway:
    """One connection, and one session for all requests, which survives the scheduler's restarts.

    Belongs to the event loop that it is made on. Silent streams get a comment every ``heartbeat_s``
    seconds; a request fails after ``resume_window_s`` seconds without a scheduler that takes it.
    """

    def __init__(
        self,
        scheduler: str,
        heartbeat_s: float,
        resume_window_s: float,
        security: SecuritySettings,
        model_rules: ModelRules,
    ) -> None:
        self.connection = Connection(scheduler, security)
        self.session = Session(self.connection.channel, resume_window_s=resume_window_s)
        self.budgets = SharedBudgets(self.connection.channel)
        self.pool = TokenizerPool()
        self.models = ModelTable(self.connection, self.pool, model_rules)
        self.heartbeat_s = heartbeat_s
        #: Set when the process is to stop; streams without an end then end.
        self.stopping = asyncio.Event()

    async def close(self) -> None:
        """Cancel what runs, close the channel."""
        self.stopping.set()
        await self.session.close()
        await self.budgets.close()
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
        """Generate ``body.n`` sequences per prompt, or the best of more.

        A caller that leaves cancels all of them.
        """
        label: str = request.scope["aegaeon.request_id"]
        generations: list[Generation] = []
        prompt_tokens = sum(len(prompt) for prompt in prompts)
        budget = await self.budgets.admit(current_caller.get(), body.model, prompt_tokens)

        def close() -> asyncio.Task[None] | None:
            for generation in generations:
                generation.close()
            made = sum(generation.made for generation in generations)
            return self.budgets.spend(budget, made)

        try:
            for prompt in prompts:
                first = None
                for number in range(form.candidates or body.answers):
                    made = Generation(self.session, model, body, prompt, form, label, number, first)
                    generations.append(made)
                    first = first or made
            if body.stream:
                deltas = await started(request, merged(generations))
            else:
                outputs = await unless_gone(request, _outputs(generations))
                best = _best(outputs, form.candidates, body.answers)
                count = sum(len(output.steps) for output in outputs)
                # What is told of prompts may be a lot.
                size = sum(len(output.prompt or ()) for output in best)
                response = await self._off_loop(size, lambda: _whole(answer, best, count))
        except BaseException:
            close()
            raise
        if body.stream:
            return EventStream(answer.events(deltas), self.heartbeat_s, close)
        if (counting := close()) is not None:
            await counting  # the caller's next request finds it done
        return response

    async def _off_loop(self, size: int, render: Callable[[], Response]) -> Response:
        """Render in a thread what is of some ``size``, in tokens."""
        return await self.pool.run(size, render) if size else render()


def _whole(answer: Answer, outputs: Sequence[Output], made: int) -> Response:
    return JSONResponse(answer.whole(outputs, made))


def _best(outputs: list[Output], candidates: int, answers: int) -> list[Output]:
    """Of the candidates for each prompt the most probable ones."""
    if not candidates:
        return outputs
    groups = (outputs[at : at + candidates] for at in range(0, len(outputs), candidates))
    return [
        output
        for group in groups
        for output in sorted(group, key=lambda output: -output.score)[:answers]
    ]


async def _outputs(generations: Sequence[Generation]) -> list[Output]:
    return list(await asyncio.gather(*(generation.output() for generation in generations)))
