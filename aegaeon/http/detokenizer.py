"""Token ids to text while they are made."""

from __future__ import annotations

from collections.abc import Iterable

from aegaeon.http.text_stages import ByteLevel, Stage, stages
from aegaeon.http.vocabulary import Vocabulary


class Detokenizer:
    """Text of one sequence, piece by piece, in time linear in its length.

    All texts that `feed` and `finish` return, joined, are the text of all ids at once. An
    unfinished character is held back; at the end it becomes U+FFFD. Added tokens come out verbatim,
    unless they are special, not among those ``shown``, and ``skip_special_tokens`` is set.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        skip_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._vocabulary = vocabulary
        self._skip = vocabulary.special - shown if skip_special_tokens else frozenset()
        self._skips = skip_special_tokens
        self._held: list[int] = []
        self._stages: list[Stage] = stages(vocabulary.decoder) if vocabulary.streams else []
        self._verbatim = next(
            (stage for stage in self._stages[:1] if isinstance(stage, ByteLevel)), None
        )

    def feed(self, token_ids: Iterable[int]) -> str:
        """Text that is certain now."""
        if not self._vocabulary.streams:
            self._held.extend(token_ids)
            return ""
        text: list[str] = []
        for token_id in token_ids:
            if token_id in self._skip:
                continue
            added = self._vocabulary.added.get(token_id)
            if added is not None and self._verbatim is not None:
                text += self._through(1, self._verbatim.verbatim(added))
            elif (piece := self._vocabulary.piece(token_id)) is not None:
                text += self._through(0, [piece])
        return "".join(text)

    def finish(self) -> str:
        """What was held back."""
        if not self._vocabulary.streams:
            return self._vocabulary.decode_all(self._held, self._skips)
        text: list[str] = []
        for index, stage in enumerate(self._stages):
            text += self._through(index + 1, stage.finish())
        return "".join(text)

    def _through(self, first: int, pieces: list[str]) -> list[str]:
        for stage in self._stages[first:]:
            pieces = [out for piece in pieces for out in stage.feed(piece)]
        return pieces


def text_of(
    vocabulary: Vocabulary, token_ids: Iterable[int], *, skip_special_tokens: bool = True
) -> str:
    """Text of a whole list."""
    detokenizer = Detokenizer(vocabulary, skip_special_tokens=skip_special_tokens)
    return detokenizer.feed(token_ids) + detokenizer.finish()
