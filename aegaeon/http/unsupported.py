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
        raise _invalid("stream_options", "only with stream = true")
    if body.stream and body.prompt_logprobs is not None:
        raise _invalid(
            "prompt_logprobs", "not in a stream; there, echo with logprobs of /v1/completions"
        )
    if isinstance(body, CompletionBody):
        _check_completion(body)


def _check_completion(body: CompletionBody) -> None:
    if body.best_of is not None and body.best_of < body.answers:
        raise _invalid("best_of", "below n")
    if body.stream and body.best_of not in (None, body.answers):
        raise _invalid("best_of", "not in a stream")
    if body.echo and body.truncate_prompt_tokens is not None:
        raise unsupported("truncate_prompt_tokens", "not together with echo")
    if body.max_tokens == 0:
        if body.min_tokens:
            raise _invalid("min_tokens", f"{body.min_tokens} is above max_tokens (0)")
        if not body.echo and body.prompt_logprobs is None:
            raise _invalid("max_tokens", "0 makes nothing, which is for echo or prompt_logprobs")


def _invalid(field: str, problem: str) -> ApiError:
    return ApiError(f"{field}: {problem}", code="invalid_value", param=field)
