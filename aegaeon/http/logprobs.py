"""Log-probabilities as OpenAI shows them; those of the model, before any sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from aegaeon.http.token_bytes import token_bytes
from aegaeon.http.vocabulary import Vocabulary
from aegaeon.step_output import PromptLogprob, StepOutput

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


def prompt_logprobs(
    vocabulary: Vocabulary,
    token_ids: Sequence[int],
    told: Sequence[PromptLogprob | None],
    count: int,
) -> list[dict[str, Any] | None]:
    """Of a prompt, in vLLM's form: by id, the ``count`` most probable tokens and the prompt's own.

    Ranks are those among the most probable ones; null for an own token that is not among them.
    """
    entries: list[dict[str, Any] | None] = []
    for token_id, entry in zip(token_ids, told, strict=True):
        if entry is None:
            entries.append(None)
            continue
        top = {
            token: (value, rank)
            for rank, (token, value) in enumerate(islice(entry.top_logprobs.items(), count), 1)
        }
        own: dict[int, tuple[float, int | None]] = {token_id: (entry.logprob, None)}
        entries.append(
            {
                str(token): {
                    "logprob": _value(value),
                    "rank": rank,
                    "decoded_token": token_bytes(vocabulary, token).decode(errors="replace"),
                }
                for token, (value, rank) in (own | top).items()
            }
        )
    return entries


class CompletionLogprobs:
    """Of a completion's choice, whose offsets count on from chunk to chunk."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._offset = 0

    def of(self, steps: Sequence[StepOutput]) -> dict[str, list[Any]]:
        """Four arrays, an entry of each per token."""
        return {
            "text_offset": self._offsets([step.new_token_id for step in steps]),
            "token_logprobs": [_value(step.logprob) for step in steps],
            "tokens": [self._text(step.new_token_id) for step in steps],
            "top_logprobs": [
                self._top(top) for step in steps if (top := step.top_logprobs) is not None
            ],
        }

    def of_prompt(
        self, token_ids: Sequence[int], told: Sequence[PromptLogprob | None], count: int
    ) -> dict[str, list[Any]]:
        """The same of a prompt, or a part of it, with ``count`` of the most probable tokens; null
        where nothing stands before a token."""
        return {
            "text_offset": self._offsets(token_ids),
            "token_logprobs": [entry and _value(entry.logprob) for entry in told],
            "tokens": [self._text(token_id) for token_id in token_ids],
            "top_logprobs": [
                entry and self._top(dict(islice(entry.top_logprobs.items(), count)))
                for entry in told
            ],
        }

    def _offsets(self, token_ids: Sequence[int]) -> list[int]:
        offsets = []
        for token_id in token_ids:
            offsets.append(self._offset)
            self._offset += len(self._text(token_id))
        return offsets

    def _top(self, top: Mapping[int, float]) -> dict[str, float]:
        return {self._text(token): _value(value) for token, value in top.items()}

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
