"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import JSONResponse, Response

from aegaeon.http.chat import characters, chat_prompt
from aegaeon.http.detokenizer import text_of
from aegaeon.http.errors import ApiError
from aegaeon.http.gateway import Gateway
from aegaeon.http.openapi import body_of
from aegaeon.http.schemas import DetokenizeBody, TokenizeBody, read
from aegaeon.http.tokenizing import encode


def tokenize_routes(gateway: Gateway) -> APIRouter:
    """Both endpoints."""
    router = APIRouter(tags=["tokens"])

    @router.post("/tokenize", openapi_extra=body_of(TokenizeBody))
    async def tokenize(body: Annotated[TokenizeBody, Depends(read(TokenizeBody))]) -> Response:
        """Token ids of a prompt, or of messages after the chat template."""
        _check(body)
        model = await gateway.models.get(body.model)
        if body.messages is not None:
            size, options = characters(body.messages), body.chat_template_kwargs or {}
            tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
            ids = await gateway.pool.run(size, chat_prompt, model, body.messages, options, tools)
        else:
            text, special = body.prompt or "", body.add_special_tokens is not False
            ids = await gateway.pool.run(
                len(text), lambda: encode(model.tokenizer, text, add_special_tokens=special)
            )
        return JSONResponse(
            {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids}
        )

    @router.post("/detokenize", openapi_extra=body_of(DetokenizeBody))
    async def detokenize(
        body: Annotated[DetokenizeBody, Depends(read(DetokenizeBody))],
    ) -> Response:
        """Text of token ids."""
        model = await gateway.models.get(body.model)
        skip = body.skip_special_tokens
        highest = max(body.tokens, default=0)
        if highest >= model.vocab_size:
            raise ApiError(
                f"tokens: {highest} is outside the vocabulary of {model.vocab_size} tokens",
                code="token_out_of_vocabulary",
                param="tokens",
            )
        text = await gateway.pool.run(
            len(body.tokens),
            lambda: text_of(model.vocabulary, body.tokens, skip_special_tokens=skip),
        )
        return JSONResponse({"prompt": text})

    return router


def _check(body: TokenizeBody) -> None:
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(
            "prompt: give either prompt or messages", code="invalid_value", param="prompt"
        )
    only_prompt = body.add_special_tokens is not None and body.messages is not None
    only_chat = next(
        (name for name in ("chat_template_kwargs", "tools") if getattr(body, name) is not None),
        None,
    )
    name = "add_special_tokens" if only_prompt else only_chat
    if only_prompt or (only_chat is not None and body.prompt is not None):
        raise ApiError(f"{name}: has no effect on what was given", code="invalid_value", param=name)
