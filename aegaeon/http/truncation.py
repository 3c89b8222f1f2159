"""Prompts cut at their callers' wish; never without."""

from __future__ import annotations

from collections.abc import Sequence

from aegaeon.http.models import ServedModel
from aegaeon.http.schemas import GenerationBody


def truncated(
    body: GenerationBody, model: ServedModel, prompt: Sequence[int], max_tokens: int | None
) -> Sequence[int]:
    """The last tokens of a prompt, as many as the body asks for."""
    limit = body.truncate_prompt_tokens
    if limit is None:
        return prompt
    if limit < 0:
        limit = max(1, model.max_model_len - (max_tokens or 1))
    return prompt[len(prompt) - limit :] if limit < len(prompt) else prompt
