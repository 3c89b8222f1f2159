"""What detokenizing needs of a tokenizer, found once per tokenizer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aegaeon.http.text_stages import UnstreamableDecoderError, stages

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Vocabulary:
    """Ids to pieces, and the decoder that makes text of them.

    ``decoder`` is None where text can only be made of all ids at once: for tokenizers that are
    written in Python, and for decoders that look ahead.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self._pieces: dict[int, str | None] = {}
        #: What tokens spell, as `token_bytes` has found it.
        self.spelled: dict[int, bytes] = {}
        self.added: dict[int, str] = {}
        self.special: set[int] = set(tokenizer.all_special_ids)
        #: Ids that are no text to llguidance, which a grammar has to name: special tokens, and all
        #: that were added in angle brackets.
        self.whole: set[int] = self.special
        self.streams = self._backend is not None
        self._decoder: Any = None
        if self._backend is None:
            return
        added = self._backend.get_added_tokens_decoder()
        self.added = {token_id: token.content for token_id, token in added.items()}
        contents = {token.content for token in added.values() if token.special}
        self.special = {
            found for text in contents if (found := self._backend.token_to_id(text)) is not None
        }
        self.whole = self.special | {
            token_id
            for token_id, text in self.added.items()
            if text.startswith("<") and text.endswith(">")
        }
        if self._backend.decoder is not None:
            self._decoder = json.loads(self._backend.decoder.__getstate__())
        try:
            stages(self._decoder)
        except UnstreamableDecoderError:
            self.streams = False

    @property
    def decoder(self) -> Any:
        """The decoder's JSON; None is the absence of one. Only for tokenizers that stream."""
        return self._decoder

    def piece(self, token_id: int) -> str | None:
        """The token's piece; None for an id that has none."""
        try:
            return self._pieces[token_id]
        except KeyError:
            piece: str | None = self._backend.id_to_token(token_id)
            self._pieces[token_id] = piece
            return piece

    def decode_all(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        """Text of a whole list, by the tokenizer itself."""
        text = self._tokenizer.decode(
            token_ids,
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return str(text)
