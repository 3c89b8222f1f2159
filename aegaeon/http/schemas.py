"""Bodies of requests. Unknown fields, wrong types and values out of bounds are refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Request
from pydantic import Field, ValidationError

from aegaeon.http.body import Body, check_parts
from aegaeon.http.errors import from_validation
from aegaeon.http.formats import FormBody
from aegaeon.http.messages import AllowedTools, Message, NamedTool, Tool
from aegaeon.model_spec import DTypeName

#: Sequences that one request may ask for: prompts times ``n``.
MAX_CHOICES = 128
#: Characters of a cache salt; four bytes each at most.
MAX_SALT = 64
_MAX_STOP_STRINGS = 16
_MAX_STOP_LENGTH = 1024

Label = Annotated[str, Field(max_length=64)]
ModelName = Annotated[str, Field(min_length=1, max_length=256)]
StopString = Annotated[str, Field(min_length=1, max_length=_MAX_STOP_LENGTH)]
StopList = Annotated[list[StopString], Field(fail_fast=True, max_length=_MAX_STOP_STRINGS)]
Count = Annotated[int, Field(ge=1, le=2**31)]
#: Most probable tokens beside each one.
Alternatives = Annotated[int, Field(ge=0, le=20)]
# Fail fast, wherever there are lists: one of a million ids must not become a million errors, which
# would take minutes of the event loop.
TokenId = Annotated[int, Field(ge=0, le=2**32 - 1)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True, max_length=MAX_CHOICES)]
Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1)]
Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=128)]
Names = Annotated[list[str], Field(fail_fast=True)]
TokenLists = Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_CHOICES)]


class StreamOptions(Body):
    """See OpenAI."""

    include_usage: bool | None = None


class GenerationBody(FormBody):
    """What completions and chat completions have in common."""

    model: ModelName
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: StopString | StopList | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    #: A label of the caller's, shown with the request in logs and events.
    user: Label | None = None
    # Beyond OpenAI.
    cache_salt: Annotated[str, Field(max_length=MAX_SALT)] | None = None
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0, le=2**31)] = 0
    prefix_caching: bool = True
    priority: Annotated[int, Field(ge=-8, le=8)] = 0
    #: Of the prompt's tokens, in vLLM's form.
    prompt_logprobs: Alternatives | None = None
    return_token_ids: bool = False
    skip_special_tokens: bool = True
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=1024)] | None = None
    # Sampling; see `SamplingParams`.
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=1024)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    #: Leaves so many tokens of a longer prompt, the last ones; -1 as many as there is room for.
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**31)] | None = None

    @property
    def stop_strings(self) -> list[str]:
        """A list, however they were given."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def caller(self) -> str | None:
        """What the caller says of its own user."""
        return self.user

    @property
    def answers(self) -> int:
        """Per prompt, as many as are given."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: str | Texts | TokenIds | TokenLists
    #: 0 makes nothing: for what is told of the prompt.
    max_tokens: Annotated[int, Field(ge=0, le=2**31)] | None = None
    echo: bool | None = None
    add_special_tokens: bool = True
    #: Of the answer's tokens, and with ``echo`` of the prompt's as well.
    logprobs: Alternatives | None = None
    #: Makes so many answers per prompt, and gives the ``n`` most probable ones.
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    # Known, and refused unless it asks for what happens anyway: see `unsupported.py`.
    suffix: str | None = None


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Messages
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    tools: Tools | None = None
    tool_choice: (
        Literal["auto", "none", "required"]
        | Annotated[NamedTool | AllowedTools, Field(discriminator="type")]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    #: OpenAI's newer names of ``user``, as a label and as a hint that prompts begin alike, which
    #: is found without.
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    # Known, see above.
    audio: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Names | None = None
    prediction: Any = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    web_search_options: Any = None

    @property
    def caller(self) -> str | None:
        """What the caller says of its own user."""
        return self.user or self.safety_identifier


class TokenizeBody(Body):
    """POST /tokenize: a prompt, or messages through the chat template."""

    model: ModelName
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: ModelName
    tokens: TokenIds
    skip_special_tokens: bool = False


class DeployBody(Body):
    """POST /v1/models/deploy."""

    model: ModelName
    #: Folder on the nodes; not given: that of the deployed model, or the Hugging Face cache.
    path: str | None = None
    replica_count: Annotated[int, Field(ge=1, le=10_000)] | None = None
    node_ids: Names | None = None
    max_model_len: Count | None = None
    dtype: DTypeName | None = None
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None
    prefix_caching: bool | None = None
    #: See `aegaeon.tool_parsers`.
    tool_parser: Annotated[str, Field(min_length=1)] | None = None


class UndeployBody(Body):
    """POST /v1/models/undeploy."""

    model: ModelName
    node_ids: Names | None = None


B = TypeVar("B", bound=Body)


def read(kind: type[B]) -> Callable[[Request], Awaitable[B]]:
    """A dependency that reads the body, whatever content type it claims to have."""

    async def parse(request: Request) -> B:
        content = await request.body()
        check_parts(content)
        try:
            return kind.model_validate_json(content)
        except ValidationError as error:
            raise from_validation(error) from None

    return parse
