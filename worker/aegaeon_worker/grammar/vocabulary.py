"""A model's tokens as bytes, which is what grammars are matched with."""

from __future__ import annotations

import hashlib
from typing import Any

from llguidance import LLTokenizer

from aegaeon.errors import ModelUnsupportedError
from aegaeon.utils import load_tokenizer
from aegaeon_worker.engine.events import LoadedModel


class Vocabulary:
    """Made of the model's own tokenizer files; takes some tenths of a second, with Python's lock.

    ``key`` is the same for models that share a tokenizer. Raises ModelUnsupportedError.
    """

    def __init__(self, model: LoadedModel) -> None:
        spec, facts = model.spec, model.facts
        try:
            tokenizer = load_tokenizer(spec.path, trust_remote_code=spec.trust_remote_code)
            backend: Any = tokenizer.backend_tokenizer
            backend.no_truncation()
            backend.no_padding()
            text: str = backend.to_str()
            size = max(facts.vocab_size, backend.get_vocab_size(with_added_tokens=True))
            self.end_ids = _end_ids(tokenizer, facts.eos_token_ids, size)
            self.tokens = LLTokenizer(text, n_vocab=size, eos_token=self.end_ids)
        except Exception as error:  # files of any kind
            raise ModelUnsupportedError(
                f"model {spec.name}: its tokenizer cannot be matched with constraints: {error}",
                metadata={"model": spec.name},
            ) from error
        digest = hashlib.sha256(text.encode(errors="surrogatepass"))
        digest.update(repr((size, self.end_ids)).encode())
        self.key = digest.hexdigest()


def _end_ids(tokenizer: Any, named: tuple[int, ...], size: int) -> list[int]:
    """Ids that are no text, since they end sequences."""
    ids = [token for token in named if token < size]
    if not ids and tokenizer.eos_token_id is not None:
        ids = [tokenizer.eos_token_id]
    if not ids:
        raise ValueError("it names no end-of-sequence token")
    return ids
