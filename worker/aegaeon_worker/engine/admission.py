"""What a sequence must be to run, whatever the scheduler believed."""

from __future__ import annotations

from aegaeon.errors import AegaeonError, EngineError, PreconditionError
from aegaeon_worker.engine.commands import SequenceSpec
from aegaeon_worker.engine.model_table import InstalledModel


def refusal(spec: SequenceSpec, model: InstalledModel | None) -> AegaeonError | None:
    """Why a new sequence cannot run on ``model``; none if it can."""
    if model is None:
        return PreconditionError(f"model {spec.model} is not loaded on this worker")
    tokens = spec.prompt + spec.generated
    facts = model.loaded.facts
    if not spec.prompt or max(tokens) >= facts.vocab_size:
        return EngineError(
            f"sequence {spec.handle}: no prompt, or ids not below {facts.vocab_size}"
        )
    if max(spec.stop.stop_ids, default=0) >= facts.vocab_size:
        return EngineError(f"sequence {spec.handle}: stop ids not below {facts.vocab_size}")
    bias = spec.sampling.logit_bias if spec.sampling is not None else ()
    if any(token >= facts.vocab_size for token, _ in bias):
        return EngineError(f"sequence {spec.handle}: biased ids not below {facts.vocab_size}")
    if len(tokens) >= min(spec.stop.max_model_len, facts.max_model_len):
        return EngineError(f"sequence {spec.handle}: {len(tokens)} tokens fill the context")
    if spec.kv is not None and spec.kv.num_tokens >= len(tokens):
        return EngineError(
            f"sequence {spec.handle}: KV of {spec.kv.num_tokens} tokens, but only "
            f"{len(tokens)} tokens, the last of which must be without"
        )
    return None
