"""How long a request would wait for its answer at an engine."""

from __future__ import annotations

from aegaeon_scheduler.core.engine import Engine
from aegaeon_scheduler.core.sequence import Sequence

#: Tokens for which the pace of an engine counts, since an answer may end long before its limit.
_LOOK_AHEAD_TOKENS = 256


def answer_ns(engine: Engine, sequence: Sequence, kept_tokens: int) -> float:
    """Expected time until an engine has made the next tokens of a sequence that it has not got,
    and of whose first tokens it keeps the KV of ``kept_tokens``.

    Prompts that wait there and the sequence's own, turns of others that are there already and a
    switch to its model, and steps of all models of the engine, unless others make its tokens.
    """
    model, estimator, queue = sequence.model, engine.estimator, engine.queues.get(sequence.model)
    known = len(sequence.prompt) + len(sequence.generated)
    time_ns = estimator.prefill_ns(model, known - kept_tokens, kept_tokens)
    time_ns += _prompts_ahead_ns(engine)
    if engine.turn_of(model) is None:
        time_ns += sum(turn.quota_ns for turn in engine.turns)
    if model not in engine.on_device:
        time_ns += estimator.switch_ns(model)
    if model in engine.hands_off:
        return time_ns
    step_ns = sum(engine.step_ns(name) for name in engine.queues if name != model)
    if queue is None:
        step_ns += estimator.step_ns(model, 1, known)
    else:
        batch = min(queue.runnable + 1, engine.identity.max_batch_sequences)
        step_ns += estimator.step_ns(
            model, batch, (queue.tokens + known) * batch / (queue.size + 1)
        )
    wanted = sequence.stop.max_new_tokens - len(sequence.generated)
    return time_ns + step_ns * min(wanted, _LOOK_AHEAD_TOKENS)


def _prompts_ahead_ns(engine: Engine) -> float:
    """Expected time for the prompts that an engine has not computed."""
    time_ns = 0.0
    for model, queue in engine.queues.items():
        tokens = queue.dues().prompt_tokens if queue.waiting else 0
        turn = engine.turn_of(model)
        if turn is not None:
            tokens += _newest_prompts(turn.members)
        if tokens:
            time_ns += engine.estimator.prefill_ns(model, tokens)
    return time_ns


def _newest_prompts(members: dict[int, Sequence]) -> int:
    """Tokens of prompts at the end of a turn's members: who has joined it last has no token."""
    tokens = 0
    for sequence in reversed(members.values()):
        if sequence.has_token_here:
            break
        tokens += sequence.prompt_ahead
    return tokens
