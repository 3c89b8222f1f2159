"""The form that an answer is to have, as OpenAI and vLLM ask for it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from aegaeon.constraint import Constraint
from aegaeon.errors import InvalidRequestError
from aegaeon.grammars import check_constraint
from aegaeon.http.body import Body
from aegaeon.http.errors import ApiError


class TextFormat(Body):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Body):
    """A JSON schema; the form is kept whether it is strict or not."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    # The name that OpenAI gives it is taken by pydantic.
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class JsonSchemaFormat(Body):
    """A JSON value of a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


Texts = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=4096)]
ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class FormBody(Body):
    """Fields that ask for a form; one at most."""

    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: (
        Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=4096)] | None
    ) = None
    guided_grammar: str | None = None

    def form(self) -> tuple[str, Constraint] | None:
        """The field that asks for a form, and the form. Raises ApiError."""
        asked: list[tuple[str, Constraint]] = []
        if isinstance(self.response_format, JsonObjectFormat):
            asked.append(("response_format", Constraint.json_object()))
        elif isinstance(self.response_format, JsonSchemaFormat):
            schema = self.response_format.json_schema.schema_
            asked.append(("response_format", Constraint.json_schema(schema)))
        if self.guided_json is not None:
            asked.append(("guided_json", Constraint.json_schema(self.guided_json)))
        if self.guided_regex is not None:
            asked.append(("guided_regex", Constraint.regex(self.guided_regex)))
        if self.guided_choice is not None:
            asked.append(("guided_choice", Constraint.choice(self.guided_choice)))
        if self.guided_grammar is not None:
            asked.append(("guided_grammar", Constraint.grammar(self.guided_grammar)))
        if len(asked) > 1:
            names = " and ".join(name for name, _ in asked)
            raise ApiError(f"{names}: only one of them", code="invalid_value", param=asked[1][0])
        return asked[0] if asked else None


def check_form(param: str, constraint: Constraint) -> None:
    """Raise ApiError, which names the field, for a form that cannot be asked for.

    To be called in a thread.
    """
    try:
        check_constraint(constraint)
    except InvalidRequestError as error:
        problem = error.message.partition(": ")[2]
        raise ApiError(f"{param}: {problem}", code="invalid_value", param=param) from error
