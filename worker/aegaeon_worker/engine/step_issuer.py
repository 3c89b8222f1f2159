"""Issues steps of one model to the device."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from aegaeon_worker.engine.execution import Watch
from aegaeon_worker.engine.issued_step import IssuedStep
from aegaeon_worker.engine.model_table import InstalledModel
from aegaeon_worker.engine.prompt_scores import score_prompts, scored_pieces
from aegaeon_worker.engine.sampler import choose_tokens
from aegaeon_worker.engine.step_plan import Chunk, build_input
from aegaeon_worker.grammar.masks import Masks


def issue_step(
    model: InstalledModel,
    chunks: Seq[Chunk],
    block_tables: Seq[list[int]],
    before: IssuedStep | None,
    masks: Masks,
    watch: Watch,
) -> IssuedStep:
    """Queue one pass over ``chunks`` and the choice of its tokens, without waiting for either.

    ``before`` is the step whose tokens are under way, if any. What ``masks`` make for constrained
    sequences is waited for, while the device computes.
    """
    tokens = before.tokens if before is not None else None
    completing = [chunk.sequence for chunk in chunks if chunk.completes]
    excluded = masks.begin(completing)
    gate = model.memory.weights.gate
    if gate.done:
        gate.wait_all()
    scores = None
    if model.decode is not None and all(c.num_tokens == 1 and c.completes for c in chunks):
        # What has been recorded does not stop at the gate.
        choices = model.decode.issue(completing, block_tables, tokens, excluded, replays=gate.open)
    else:
        step = build_input(chunks, block_tables, model.memory.kv.tensor, tokens)
        logits = model.served.forward(step)
        if pieces := scored_pieces(chunks):
            scores = score_prompts(logits[len(completing) :], pieces)
            logits = logits[: len(completing)]
        choices = choose_tokens(logits, completing, excluded, tokens)
    watch.stop()
    return IssuedStep(chunks, choices, watch, scores)
