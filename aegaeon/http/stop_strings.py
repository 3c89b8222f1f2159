"""Stop strings, found in text however it is cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Finds the first stop string to be complete; of several that end at once, the longest.

    Text is released up to a tail that is a proper prefix of some stop string, so a stop string is
    never shown in part, and the result does not depend on how text arrives. Knuth-Morris-Pratt, one
    automaton per string: linear in the text.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = sorted(strings, key=len, reverse=True)
        self._tables = [_prefix_table(string) for string in self._strings]
        self._matched = [0] * len(self._strings)
        self._held = ""
        #: The string that was found.
        self.found: str | None = None

    @property
    def watching(self) -> bool:
        """Whether there is anything to find."""
        return bool(self._strings)

    def feed(self, text: str) -> str:
        """Text that is certain to be kept; nothing after a string was found."""
        if self.found is not None:
            return ""
        if not self._strings:
            return text
        begin = len(self._held)
        self._held += text
        for end in range(begin, len(self._held)):
            self._step(self._held[end])
            for string, matched in zip(self._strings, self._matched, strict=True):
                if matched == len(string):
                    self.found = string
                    kept, self._held = self._held[: end + 1 - matched], ""
                    return kept
        cut = len(self._held) - max(self._matched)
        kept, self._held = self._held[:cut], self._held[cut:]
        return kept

    def finish(self) -> str:
        """What was held back, as the text is over."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> None:
        for index, string in enumerate(self._strings):
            table, matched = self._tables[index], self._matched[index]
            while matched and string[matched] != character:
                matched = table[matched - 1]
            if string[matched] == character:
                matched += 1
            self._matched[index] = matched


def _prefix_table(string: str) -> list[int]:
    """For every prefix, the length of its longest proper prefix that also ends it."""
    table = [0] * len(string)
    matched = 0
    for index in range(1, len(string)):
        while matched and string[matched] != string[index]:
            matched = table[matched - 1]
        if string[matched] == string[index]:
            matched += 1
        table[index] = matched
    return table
