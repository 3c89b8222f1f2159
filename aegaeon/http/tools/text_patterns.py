"""Patterns and formats of a JSON schema's strings, as regular expressions of a whole text."""

from __future__ import annotations

_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]{1,9})?"
    r"(Z|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
#: Of RFC 3339 and 9562, as JSON schemas mean them.
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
_ANYTHING = "(?s:.*)"


def whole_pattern(pattern: str) -> str | None:
    """The expression of all texts in which a schema's pattern is found, between slashes of a
    grammar; None where that cannot be told from its beginning and end alone."""
    from_start, to_end = pattern.startswith("^"), pattern.endswith("$")
    if to_end and (len(pattern) - len(pattern[:-1].rstrip("\\"))) % 2 == 0:
        to_end = False  # a dollar of the text itself
    inside = _checked(pattern[from_start : len(pattern) - to_end])
    if inside is None:
        return None
    return f"{'' if from_start else _ANYTHING}(?:{inside}){'' if to_end else _ANYTHING}"


def _checked(pattern: str) -> str | None:
    """Without anchors, and without a choice that would share those around it."""
    parts: list[str] = []
    depth, in_class, escaped = 0, False, False
    for character in pattern:
        if escaped:
            # Digits of other scripts are none in schemas.
            parts.append({"d": "[0-9]", "\n": r"\n"}.get(character, "\\" + character))
            escaped = False
        elif character == "\\":
            escaped = True
        else:
            if not in_class and (character in "^$" or (character == "|" and not depth)):
                return None
            if not in_class:
                depth += (character == "(") - (character == ")")
            in_class = character == "[" or (in_class and character != "]")
            parts.append({"/": r"\/", "\n": r"\n"}.get(character, character))
    return None if escaped or in_class or depth else "".join(parts)
