"""What every JSON body has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from aegaeon.http.errors import ApiError

#: Strings of a body, names of fields included, however long they are.
MAX_STRINGS = 100_000
#: Lists and objects of a body. Brackets in its texts count as well, of which no context is so full.
MAX_LISTS = 250_000
#: Smaller bodies have no room for so many.
_FEW_BYTES = 1 << 18


class Body(BaseModel):
    """A JSON object. Unknown fields, wrong types and values out of bounds are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def check_parts(content: bytes) -> None:
    """Raise ApiError for a body of so many small things that reading them would hold up the event
    loop, as millions of empty lists do for ten seconds."""
    if len(content) < _FEW_BYTES:
        return
    # Each string has two quotes, of which the first has no backslash before it.
    strings = (content.count(b'"') - content.count(b'\\"')) // 2
    lists = content.count(b"[") + content.count(b"{")
    for count, limit, what in (
        (strings, MAX_STRINGS, "strings and names of fields"),
        (lists, MAX_LISTS, "lists and objects"),
    ):
        if count > limit:
            text = f"the body has about {count} {what}; at most {limit} are read"
            raise ApiError(text, code="invalid_value")
