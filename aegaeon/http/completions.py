"""POST /v1/completions and /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from aegaeon.http.answers import CompletionAnswer
from aegaeon.http.chat_answer import ChatAnswer
from aegaeon.http.chat_request import read_chat
from aegaeon.http.detokenizer import text_of
from aegaeon.http.errors import ApiError
from aegaeon.http.formats import check_form
from aegaeon.http.gateway import Gateway
from aegaeon.http.generation import Form
from aegaeon.http.models import ServedModel
from aegaeon.http.openapi import body_of
from aegaeon.http.schemas import MAX_CHOICES, ChatBody, CompletionBody, read
from aegaeon.http.tokenizing import encode
from aegaeon.http.truncation import truncated
from aegaeon.http.unsupported import check

#: OpenAI's default for completions; a chat may go on to the end of the context.
_DEFAULT_MAX_TOKENS = 16


def completion_routes(gateway: Gateway) -> APIRouter:
    """Both endpoints."""
    router = APIRouter(tags=["generation"])

    @router.post("/v1/completions", openapi_extra=body_of(CompletionBody))
    async def completions(
        request: Request, body: Annotated[CompletionBody, Depends(read(CompletionBody))]
    ) -> Response:
        """Continue one or several prompts, given as text or as token ids."""
        check(body)
        model = await gateway.models.get(body.model)
        max_tokens = _DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        given = await _prompts(gateway, model, body)
        prompts = [truncated(body, model, prompt, max_tokens) for prompt in given]
        cut = sum(map(len, given)) - sum(map(len, prompts))
        echoes = await _echoes(gateway, model, body, given) if body.echo else []
        answer = CompletionAnswer(body, model, prompts, echoes, cut)
        asked = body.form()
        if asked is not None:
            await gateway.pool.run(len(asked[1].text), check_form, *asked)
        constraint = asked[1] if asked is not None else None
        candidates = body.best_of if body.best_of not in (None, body.answers) else 0
        form = Form(max_tokens, constraint, candidates or 0)
        return await gateway.respond(request, body, model, prompts, form, answer)

    @router.post("/v1/chat/completions", openapi_extra=body_of(ChatBody))
    async def chat_completions(
        request: Request, body: Annotated[ChatBody, Depends(read(ChatBody))]
    ) -> Response:
        """Answer a conversation, written as the model's chat template has it."""
        check(body)
        chat = await read_chat(gateway, body)
        answer = ChatAnswer(body, chat)
        return await gateway.respond(request, body, chat.model, [chat.prompt], chat.form, answer)

    return router


async def _prompts(gateway: Gateway, model: ServedModel, body: CompletionBody) -> list[list[int]]:
    given: Sequence[str | list[int]]
    if isinstance(body.prompt, str) or (body.prompt and isinstance(body.prompt[0], int)):
        given = [body.prompt]
    else:
        given = cast(Sequence[str | list[int]], body.prompt)
    if not given:
        raise ApiError("prompt: has no tokens", code="empty_prompt", param="prompt")
    if len(given) * max(body.answers, body.best_of or 1) > MAX_CHOICES:
        raise ApiError(
            f"n: prompts times n or best_of is above {MAX_CHOICES}",
            code="invalid_value",
            param="n",
        )

    async def ids(prompt: str | list[int]) -> list[int]:
        if not isinstance(prompt, str):
            return prompt
        return await gateway.pool.run(
            len(prompt),
            lambda: encode(model.tokenizer, prompt, add_special_tokens=body.add_special_tokens),
        )

    return list(await asyncio.gather(*(ids(prompt) for prompt in given)))


async def _echoes(
    gateway: Gateway, model: ServedModel, body: CompletionBody, prompts: list[list[int]]
) -> list[str]:
    """The prompts as they were given; ids as text."""
    if isinstance(body.prompt, str):
        return [body.prompt]
    if body.prompt and isinstance(body.prompt[0], str):
        return body.prompt
    skip = body.skip_special_tokens
    return [
        await gateway.pool.run(
            len(ids), lambda ids=ids: text_of(model.vocabulary, ids, skip_special_tokens=skip)
        )
        for ids in prompts
    ]
