"""Random messages of any type, from its descriptor."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}
_FLOATS = (0.0, -1.0, 0.5, 1e308, float("nan"), float("inf"), float("-inf"))
#: Names that exist, and names that cannot.
_TEXTS = ("m", "m", "n0", "node_0", "", "\x00", "x" * 300, "../..", "unix:/nowhere", "Ω")
_DEPTH = 4


def random_message(descriptor: Descriptor, chance: random.Random, depth: int = 0) -> Message:
    """Most fields set, to values at and beyond their bounds or to likely ones."""
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if chance.random() < 0.3 or (field.message_type and depth >= _DEPTH):
            continue
        if field.message_type and field.message_type.GetOptions().map_entry:
            _fill_map(message, field, chance)
        elif field.is_repeated:
            count = chance.choice((0, 1, 2, 5))
            values = [_value(field, chance, depth) for _ in range(count)]
            getattr(message, field.name).extend(values)
        elif field.message_type:
            getattr(message, field.name).CopyFrom(_value(field, chance, depth))
        else:
            setattr(message, field.name, _value(field, chance, depth))
    return message


def _fill_map(message: Message, field: FieldDescriptor, chance: random.Random) -> None:
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    for _ in range(chance.randrange(3)):
        getattr(message, field.name)[_value(key, chance, 0)] = _value(value, chance, 0)


def _value(field: FieldDescriptor, chance: random.Random, depth: int) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_MESSAGE:
        return random_message(field.message_type, chance, depth + 1)
    if kind in _INTEGERS:
        low, high = _INTEGERS[kind]
        likely = chance.randint(0, 40)
        return chance.choice((likely, likely, likely, 0, 1, low, high, chance.randint(low, high)))
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        numbers = [value.number for value in field.enum_type.values]
        return chance.choice([*numbers, max(numbers) + 1, 77])
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return chance.choice((chance.uniform(-2, 2), *_FLOATS))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if field.type == FieldDescriptor.TYPE_BYTES:
        return chance.randbytes(chance.choice((0, 1, 16)))
    return chance.choice(_TEXTS)
