"""Messages of a conversation, and the tools that an answer may call."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from aegaeon.http.body import Body

#: OpenAI's rule for names of functions.
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class Function(Body):
    """What a tool does, and a JSON schema of its arguments."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    #: Arguments have the schema's form. Where calls are required they have it anyway.
    strict: bool | None = None


class Tool(Body):
    """Something that the caller can do for the model."""

    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    """See `NamedTool`."""

    name: FunctionName


class NamedTool(Body):
    """The tool that is to be called."""

    type: Literal["function"]
    function: NamedFunction


class AllowedSet(Body):
    """See `AllowedTools`."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(fail_fast=True, min_length=1, max_length=128)]


class AllowedTools(Body):
    """The tools that may be called, of all that the model is shown."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedSet


class CalledFunction(Body):
    """A function's name with its arguments as JSON text."""

    name: str
    arguments: str
    # What clients read into calls, and send back.
    parsed_arguments: Any = None


class ToolCall(Body):
    """A call that the model has made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class TextPart(Body):
    """Text of a message."""

    type: Literal["text"]
    text: str


class Message(Body):
    """A message of a conversation: asked, answered, or told by a tool."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    #: Of an assistant.
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    refusal: str | None = None
    #: Of a tool: the call that it answers.
    tool_call_id: str | None = None
    # Clients send back what they got, and what they read into it; there is nothing new in these.
    annotations: Annotated[list[Any], Field(fail_fast=True, max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    parsed: Any = None

    @model_validator(mode="after")
    def _fits_role(self) -> Self:
        if self.role != "assistant" and (self.tool_calls or self.refusal):
            raise ValueError("only an assistant's message has tool_calls or a refusal")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError("a tool's message, and no other, has a tool_call_id")
        if self.content is None and not self.tool_calls and self.refusal is None:
            raise ValueError("the message has no content")
        return self

    @property
    def text(self) -> str:
        """Its content, however it was given."""
        if self.content is None:
            return self.refusal or ""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)
