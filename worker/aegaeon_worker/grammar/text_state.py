"""How far the text of one sequence has come on its way to what a constraint asks for."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from llguidance import LLMatcher

from aegaeon.errors import InvalidRequestError
from aegaeon.grammars import matcher_problem
from aegaeon_worker.grammar.vocabulary import Vocabulary

#: Processor time that a mask may take; usual ones take less than a thousandth of it.
_MAX_MASK_S = 0.1


class TextState:
    """Follows one sequence. Can be made anew from its tokens, so it is never moved or saved."""

    def __init__(
        self, matcher: LLMatcher, vocabulary: Vocabulary, generated: Sequence[int]
    ) -> None:
        """Begin after ``generated``. Raises InvalidRequestError if they lead elsewhere.

        ``matcher`` is in its first state, and belongs to this object from now on.
        """
        self._matcher = matcher
        self._end_ids = vocabulary.end_ids
        taken = matcher.try_consume_tokens(list(generated))
        if taken < len(generated):
            raise InvalidRequestError(
                f"generated_token_ids[{taken}]: the text does not meet the request's constraint",
                metadata={"field": "generated_token_ids"},
            )

    def take(self, token: int) -> bool:
        """Go on with a token, which is text; True if nothing can follow it. Raises
        InvalidRequestError."""
        if not self._matcher.consume_token(token):
            raise _failed(matcher_problem(self._matcher))
        return self._matcher.is_stopped()

    def mask(self, stop_ids: Collection[int]) -> bytearray:
        """The tokens that may come next, a bit each, the lowest bit of a byte first.

        Ids that end the sequence are among them where the text is complete. Raises
        InvalidRequestError where there are none, and where it takes so long that others of the
        batch would wait for it again and again.
        """
        begun = time.thread_time()
        bits = bytearray(self._matcher.compute_bitmask())
        if self._matcher.is_error():
            raise _failed(matcher_problem(self._matcher))
        spent = time.thread_time() - begun
        if spent > _MAX_MASK_S:
            raise _failed(f"a token takes {spent:.1f} s of a processor; make it simpler")
        for token in self._end_ids:
            bits[token >> 3] &= ~(1 << (token & 7))
        if self._matcher.is_accepting():
            for token in stop_ids:
                bits[token >> 3] |= 1 << (token & 7)
        if bits.count(0) == len(bits):
            raise _failed("it asks for tokens that end a text before it is complete")
        return bits


def _failed(problem: str) -> InvalidRequestError:
    """Of what the request asks for, so that it cannot be helped by trying again."""
    field = "sampling.constraint"
    return InvalidRequestError(
        f"{field}: it cannot be followed: {problem}", metadata={"field": field}
    )
