"""POST /v1/responses."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from aegaeon.http.chat_request import read_chat
from aegaeon.http.gateway import Gateway
from aegaeon.http.openapi import body_of
from aegaeon.http.responses.answer import ResponsesAnswer
from aegaeon.http.responses.convert import to_chat
from aegaeon.http.responses.schemas import ResponsesBody
from aegaeon.http.schemas import read


def responses_routes(gateway: Gateway) -> APIRouter:
    """The endpoint, without what would need a store."""
    router = APIRouter(tags=["generation"])

    @router.post("/v1/responses", openapi_extra=body_of(ResponsesBody))
    async def responses(
        request: Request, body: Annotated[ResponsesBody, Depends(read(ResponsesBody))]
    ) -> Response:
        """Answer an input, written as the model's chat template has it."""
        own = to_chat(body)
        chat = await read_chat(gateway, own)
        answer = ResponsesAnswer(body, own, chat)
        return await gateway.respond(request, own, chat.model, [chat.prompt], chat.form, answer)

    return router
