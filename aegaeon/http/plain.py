"""Contract messages as JSON values.

Unlike protobuf's own JSON, 64-bit numbers are numbers and enums are lower-case words.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

_CAPITALS = str.maketrans(
    {chr(code): f"_{chr(code + 32)}" for code in range(ord("A"), ord("Z") + 1)}
)


def plain(message: Message) -> dict[str, Any]:
    """Every field by name; unset messages and members of a oneof are left out."""
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _value(field: Any, value: Any) -> Any:
    if not field.is_repeated:
        return _scalar(field, value)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name["value"]
        return {str(key): _scalar(entry, value[key]) for key in sorted(value)}
    return [_scalar(field, item) for item in value]


def _scalar(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return plain(value)
    if field.enum_type is None:
        return value
    known = field.enum_type.values_by_number.get(value)
    if known is None:  # of a newer scheduler
        return value
    prefix = field.enum_type.name.translate(_CAPITALS).lstrip("_") + "_"
    return known.name.lower().removeprefix(prefix)
