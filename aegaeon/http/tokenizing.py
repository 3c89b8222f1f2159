"""Text to token ids, off the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from aegaeon.http.errors import ApiError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

#: Texts beyond this many characters wait for each other, so that short ones never wait for them.
_LARGE_CHARACTERS = 100_000


class TokenizerPool:
    """Threads for tokenizers and templates; the former release Python's lock while they work."""

    def __init__(self) -> None:
        threads = max(2, min(8, os.cpu_count() or 1))
        self._small = ThreadPoolExecutor(threads, "tokenize")
        self._large = ThreadPoolExecutor(max(1, threads // 2), "tokenize-large")

    async def run(self, size: int, function: Callable[..., T], *arguments: Any) -> T:
        """Call in a thread; ``size`` is that of its text, in characters."""
        pool = self._large if size > _LARGE_CHARACTERS else self._small
        return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)

    def close(self) -> None:
        """Drop what waits; what runs ends by itself."""
        for pool in (self._small, self._large):
            pool.shutdown(wait=False, cancel_futures=True)


def encode(tokenizer: PreTrainedTokenizerBase, text: str, *, add_special_tokens: bool) -> list[int]:
    """Token ids of a text. Raises ApiError for text that the tokenizer cannot take."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    try:
        if backend is None:
            return list(tokenizer.encode(text, add_special_tokens=add_special_tokens))
        # Without offsets, and unlike `encode` without Python's lock.
        (encoding,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids)
    except Exception as error:
        raise ApiError(
            f"the model's tokenizer refuses the text: {error}", code="tokenizer_error"
        ) from error
