"""Values of a request's fields, checked; errors name field and value."""

from __future__ import annotations

import math
import operator

from aegaeon.errors import InvalidRequestError

#: Largest of the contract's 32-bit numbers.
MAX_UINT32 = 2**32 - 1


def invalid(field: str, value: object, problem: str) -> InvalidRequestError:
    """The error that names what is wrong with a field."""
    text = repr(value)
    text = text if len(text) <= 80 else text[:77] + "..."
    return InvalidRequestError(
        f"{field} = {text}: {problem}", metadata={"field": field, "value": text}
    )


def any_integer(field: str, value: object) -> int:
    """An integer, numpy's included. Raises InvalidRequestError."""
    try:
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        found = None
    if found is None or isinstance(value, bool):
        raise invalid(field, value, f"expected an integer, got {type(value).__name__}")
    return found


def integer(field: str, value: object, least: int, most: int = MAX_UINT32) -> int:
    """An integer within bounds. Raises InvalidRequestError."""
    found = any_integer(field, value)
    if not least <= found <= most:
        raise invalid(field, value, f"expected {least} to {most}")
    return found


def number(field: str, value: object) -> float:
    """A finite number, numpy's included. Raises InvalidRequestError."""
    try:
        found = math.nan if isinstance(value, str | bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise invalid(field, value, "expected a number")
    return found
