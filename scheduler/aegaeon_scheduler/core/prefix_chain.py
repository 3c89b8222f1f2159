"""Names of a prompt's beginnings."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Tokens

_TOKEN_BYTES = array("I").itemsize


class PrefixChain:
    """One name per full block of tokens, for everything from the first token to the block's end.

    Equal names mean equal weights, salts and tokens, as good as certain: they are Python's hashes,
    which have some 61 bits and another key in every process. That is enough to guess where KV is,
    as workers compare SHA-256 digests before they use any, and takes a fifth of the time.
    """

    __slots__ = ("_last", "_rest", "block_tokens", "names")

    def __init__(
        self, content: str, salt: str, block_tokens: int, tokens: Tokens[int] = ()
    ) -> None:
        """``content`` names the weights. Names differ where it, or the salt, does."""
        self.names = array("q")
        self.block_tokens = block_tokens
        self._last = hash((content, salt))
        #: Tokens that do not fill a block yet.
        self._rest = array("I")
        self.extend(tokens)

    def extend(self, tokens: Tokens[int]) -> None:
        """Name the blocks that further tokens fill."""
        words = self._rest
        words.fromlist(list(tokens[:]))  # a slice of a message's tokens is a list, made fast
        count = len(words) // self.block_tokens
        if not count:
            return
        size = self.block_tokens * _TOKEN_BYTES
        data, last = words.tobytes(), self._last
        named = []
        for start in range(0, count * size, size):
            last = hash((last, data[start : start + size]))
            named.append(last)
        self.names.fromlist(named)
        self._last = last
        self._rest = words[count * self.block_tokens :]
