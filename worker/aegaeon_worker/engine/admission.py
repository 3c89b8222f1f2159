"""What a sequence must be to run, whatever the scheduler believed."""

from __future__ import annotations

from aegaeon.errors import EngineError, PreconditionError
from aegaeon_worker.engine.commands import SequenceSpec
from aegaeon_worker.engine.model_table import InstalledModel
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.grammar.constraints import Constraints
from aegaeon_worker.kv.prefix_keys import Prefix


def admit(spec: SequenceSpec, model: InstalledModel | None, constraints: Constraints) -> Sequence:
    """A new sequence on ``model``. Raises the error of one that cannot run there."""
    if model is None:
        raise PreconditionError(f"model {spec.model} is not loaded on this worker")
    problem = _problem(spec, model)
    if problem:
        raise EngineError(f"sequence {spec.handle}: {problem}")
    constraint = spec.sampling.constraint if spec.sampling is not None else None
    if constraint is None:
        return Sequence(spec)
    return Sequence(spec, constraints.compiler.compile(model.loaded, constraint, spec.generated))


def prefix_of(spec: SequenceSpec, sequence: Sequence) -> Prefix | None:
    """By what it shares KV with others; None where it does not. A prompt that is scored is computed
    as a whole, since logits of all of it are wanted."""
    if not spec.prefix_caching or sequence.is_scored:
        return None
    return Prefix(sequence.tokens, spec.cache_salt)


def _problem(spec: SequenceSpec, model: InstalledModel) -> str | None:
    tokens = spec.prompt + spec.generated
    facts = model.loaded.facts
    vocab = facts.vocab_size
    if not spec.prompt or max(tokens) >= vocab:
        return f"no prompt, or ids not below {vocab}"
    if max(spec.stop.stop_ids, default=0) >= vocab:
        return f"stop ids not below {vocab}"
    bias = spec.sampling.logit_bias if spec.sampling is not None else ()
    if any(token >= vocab for token, _ in bias):
        return f"biased ids not below {vocab}"
    if len(tokens) >= min(spec.stop.max_model_len, facts.max_model_len):
        return f"{len(tokens)} tokens fill the context"
    if spec.kv is not None and spec.kv.num_tokens >= len(tokens):
        return (
            f"KV of {spec.kv.num_tokens} tokens, but only {len(tokens)} tokens, the last of which "
            "must be without"
        )
    if spec.kv is not None and spec.prompt_logprobs is not None:
        told = spec.told_prompt_tokens
        if told < min(len(spec.prompt), spec.kv.num_tokens + 1):
            return (
                f"KV of {spec.kv.num_tokens} tokens, but the prompt is to be scored from token "
                f"{told} on, for which it has to be computed"
            )
    return None
