"""The body of POST /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from aegaeon.http.body import Body
from aegaeon.http.formats import JsonObjectFormat, TextFormat
from aegaeon.http.messages import FunctionName
from aegaeon.http.schemas import Count, Label, ModelName, Names


class InputText(Body):
    """Text of an input, or of an answer that is sent back."""

    type: Literal["input_text", "output_text"]
    text: str
    # What answers have besides.
    annotations: Annotated[list[Any], Field(fail_fast=True, max_length=0)] | None = None
    logprobs: list[Any] | None = None
    parsed: Any = None


class InputMessage(Body):
    """A message of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[InputText], Field(fail_fast=True)]
    # What answers have besides.
    id: str | None = None
    status: str | None = None


class InputCall(Body):
    """A call that the model has made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None
    # What clients read into calls, and send back.
    parsed_arguments: Any = None


class InputResult(Body):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: str
    id: str | None = None
    status: str | None = None


Items = Annotated[list[InputMessage | InputCall | InputResult], Field(fail_fast=True, min_length=1)]


class SchemaFormat(Body):
    """A JSON value of a schema."""

    type: Literal["json_schema"]
    name: FunctionName
    description: str | None = None
    # The name that OpenAI gives it is taken by pydantic.
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class TextOptions(Body):
    """The form of the answer's text."""

    format: (
        Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] | None
    ) = None


class FlatTool(Body):
    """A function, without the envelope that chats have around it."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FlatChoice(Body):
    """The function that is to be called."""

    type: Literal["function"]
    name: FunctionName


class FlatAllowedTools(Body):
    """The functions that may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FlatChoice], Field(fail_fast=True, min_length=1, max_length=128)]


class ResponsesBody(Body):
    """POST /v1/responses."""

    model: ModelName
    input: str | Items
    instructions: str | None = None
    max_output_tokens: Count | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    text: TextOptions | None = None
    tool_choice: (
        Literal["auto", "none", "required"]
        | Annotated[FlatChoice | FlatAllowedTools, Field(discriminator="type")]
        | None
    ) = None
    tools: Annotated[list[FlatTool], Field(fail_fast=True, max_length=128)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    user: Label | None = None
    #: See `ChatBody`.
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    # Known, and refused unless they ask for what happens anyway.
    background: bool | None = None
    include: Names | None = None
    previous_response_id: str | None = None
    reasoning: dict[str, Any] | None = None
    service_tier: str | None = None
    store: bool | None = None
    truncation: str | None = None
