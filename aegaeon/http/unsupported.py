"""Fields of OpenAI and vLLM that are known and not honoured yet: nothing is accepted in silence."""

from __future__ import annotations

from typing import Any

from aegaeon.http.errors import ApiError, unsupported
from aegaeon.http.schemas import ChatBody, CompletionBody, GenerationBody

#: Values that ask for what happens anyway, besides null.
_NEUTRAL_COMPLETION: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
}
_NEUTRAL_CHAT: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "functions": ([],),
    "function_call": ("none",),
    "metadata": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def check(body: GenerationBody) -> None:
    """Raise ApiError for the first field that asks for something that is not done."""
    table = _NEUTRAL_CHAT if isinstance(body, ChatBody) else _NEUTRAL_COMPLETION
    for name, neutral in table.items():
        value = getattr(body, name)
        if value is not None and value not in neutral:
            raise unsupported(name, "not supported by this release; leave it out")
    if body.stream_options is not None and not body.stream:
        raise ApiError(
            "stream_options: only with stream = true", code="invalid_value", param="stream_options"
        )
    if body.stream and body.prompt_logprobs is not None:
        raise ApiError(
            "prompt_logprobs: not in a stream; there, echo with logprobs of /v1/completions",
            code="invalid_value",
            param="prompt_logprobs",
        )
    if isinstance(body, CompletionBody):
        if body.best_of is not None and body.best_of < body.answers:
            raise ApiError("best_of: below n", code="invalid_value", param="best_of")
        if body.stream and body.best_of not in (None, body.answers):
            raise ApiError("best_of: not in a stream", code="invalid_value", param="best_of")
        if body.echo and body.truncate_prompt_tokens is not None:
            raise unsupported("truncate_prompt_tokens", "not together with echo")
        if body.max_tokens == 0 and not body.echo and body.prompt_logprobs is None:
            raise ApiError(
                "max_tokens: 0 makes nothing, which is for echo or prompt_logprobs",
                code="invalid_value",
                param="max_tokens",
            )
