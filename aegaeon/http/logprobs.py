"""Log-probabilities as OpenAI shows them; those of the model, before any sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aegaeon.http.token_bytes import token_bytes
from aegaeon.http.vocabulary import Vocabulary
from aegaeon.step_output import StepOutput

#: JSON has no infinity; OpenAI's value for "next to impossible".
_LOWEST = -9999.0


def chat_logprobs(vocabulary: Vocabulary, steps: Sequence[StepOutput]) -> dict[str, Any]:
    """Of a chat's choice: every token with its bytes, since it may be a part of a character."""
    content = [
        {
            **_entry(vocabulary, step.new_token_id, step.logprob),
            "top_logprobs": [
                _entry(vocabulary, token, value)
                for token, value in (step.top_logprobs or {}).items()
            ],
        }
        for step in steps
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """Of a completion's choice, whose offsets count on from chunk to chunk."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._offset = 0

    def of(self, steps: Sequence[StepOutput]) -> dict[str, Any]:
        """Four arrays, an entry of each per token."""
        tokens = [self._text(step.new_token_id) for step in steps]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        return {
            "text_offset": offsets,
            "token_logprobs": [_value(step.logprob) for step in steps],
            "tokens": tokens,
            "top_logprobs": [
                {self._text(token): _value(value) for token, value in top.items()}
                for step in steps
                if (top := step.top_logprobs) is not None
            ],
        }

    def _text(self, token_id: int) -> str:
        data = token_bytes(self._vocabulary, token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            # OpenAI's form, which keeps parts of characters apart.
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _entry(vocabulary: Vocabulary, token_id: int, logprob: float | None) -> dict[str, Any]:
    data = token_bytes(vocabulary, token_id)
    text = data.decode(errors="replace")
    return {"token": text, "logprob": _value(logprob), "bytes": list(data)}


def _value(logprob: float | None) -> float:
    return _LOWEST if logprob is None else max(logprob, _LOWEST)
