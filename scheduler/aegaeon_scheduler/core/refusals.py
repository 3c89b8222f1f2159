"""Errors that name what is wrong with a request."""

from __future__ import annotations

from collections.abc import Iterable

from aegaeon.errors import AegaeonError, ErrorReason, InvalidRequestError


def invalid_field(name: str, value: object, rule: str) -> AegaeonError:
    """A field is out of its bounds."""
    return InvalidRequestError(
        f"{name} is {value}; it must be {rule}", metadata={"field": name, "value": value}
    )


def check_vocabulary(ids: Iterable[int], vocab_size: int, where: str) -> None:
    """Raise the error that names an id outside the vocabulary."""
    highest = max(ids, default=-1)
    if highest >= vocab_size:
        raise InvalidRequestError(
            f"{where}: token id {highest} is outside the vocabulary of {vocab_size} tokens; "
            "check that the tokenizer belongs to the model",
            reason=ErrorReason.TOKEN_OUT_OF_VOCABULARY,
            metadata={"token_id": highest, "vocab_size": vocab_size, "field": where},
        )
