"""A step that has been issued: what is in it, and what is still awaited of it."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from aegaeon.errors import AegaeonError
from aegaeon_worker.engine.execution import Watch
from aegaeon_worker.engine.prompt_scores import PendingPromptScores
from aegaeon_worker.engine.sampler import Choice, PendingChoices
from aegaeon_worker.engine.step_plan import Chunk, StepTokens


class IssuedStep:
    """Counts what was issued at once, because the sequences go on before their tokens are known."""

    def __init__(
        self,
        chunks: Seq[Chunk],
        choices: PendingChoices,
        watch: Watch,
        scores: PendingPromptScores | None = None,
    ) -> None:
        """``choices`` are of the chunks that complete, in their order."""
        self.completing = [chunk.sequence for chunk in chunks if chunk.completes]
        """Those that get a token."""
        decoding = [chunk for chunk in chunks if _decodes(chunk)]
        self.decode_sequences = len(decoding)
        self.prefill_tokens = sum(chunk.num_tokens for chunk in chunks) - len(decoding)
        self.context_tokens = sum(c.sequence.num_computed + c.num_tokens for c in chunks)
        self.tokens = StepTokens(
            choices.tokens, {sequence: row for row, sequence in enumerate(self.completing)}
        )
        """What the next step may take up."""
        self.scores = scores
        """What it tells of prompts, if anything."""
        self._choices = choices
        self._watch = watch
        self.elapsed_ns = 0
        """How long the device had it; known once it has been waited for."""

    def wait(self) -> list[Choice | AegaeonError]:
        """Block until the tokens of ``completing`` are known, or why one has none."""
        self.elapsed_ns = self._watch.elapsed_ns()
        return self._choices.wait()


def _decodes(chunk: Chunk) -> bool:
    return chunk.sequence.num_pending == 1 and chunk.sequence.num_generated > 0
