"""Which tokens of which sequences one step computes."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from aegaeon_worker.device.host_link import upload
from aegaeon_worker.engine.prefill_pace import PrefillPace
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.models.interface import StepInput


@dataclass(frozen=True)
class Chunk:
    """``num_tokens`` of a sequence's pending tokens."""

    sequence: Sequence
    num_tokens: int

    @property
    def completes(self) -> bool:
        """The chunk reaches the sequence's last token, so its logits give the next one."""
        return self.num_tokens == self.sequence.num_pending

    @property
    def scored(self) -> range:
        """The positions of prompt tokens whose log-probabilities are wanted of the chunk's logits:
        each stands behind a token of the chunk."""
        sequence = self.sequence
        first = max(sequence.num_scored, sequence.num_computed + 1)
        return range(first, min(sequence.num_computed + self.num_tokens + 1, sequence.num_prompt))


@dataclass(frozen=True)
class StepTokens:
    """The tokens that a step gave, which the host may not know yet.

    ``tokens`` int64 [R] are on the device; ``rows`` says which of them is whose.
    """

    tokens: torch.Tensor
    rows: Mapping[Sequence, int]


def plan_step(running: Seq[Sequence], pace: PrefillPace) -> list[Chunk]:
    """All decoding sequences, then prefills in order until the token budget is used up.

    A sequence that lost its KV with a token under way waits until that is known. Those whose
    prompts are scored get no more tokens than there is room for logits; others pass them then.
    """
    decoding = [Chunk(sequence, 1) for sequence in running if sequence.num_pending == 1]
    budget = pace.limits.prefill_tokens
    if decoding:
        budget = pace.mixed_tokens(min(chunk.sequence.tpot_ns for chunk in decoding))
    chunks = decoding
    room = pace.scored_tokens
    for sequence in running:
        if sequence.num_pending > 1 and not sequence.num_under_way and budget > 0:
            count = min(budget, sequence.num_pending)
            if sequence.is_scored:
                count = min(count, room)
                room -= count
            if count:
                budget -= count
                chunks.append(Chunk(sequence, count))
    return chunks


def build_input(
    chunks: Seq[Chunk],
    block_tables: Seq[Seq[int]],
    kv: torch.Tensor,
    before: StepTokens | None = None,
) -> StepInput:
    """Pack chunks into one forward pass; ``block_tables`` are device block ids per chunk.

    ``before`` has the tokens under way; it may be None when there are none. Rows of logits: first
    those of the chunks that complete, then those that score prompts.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    logit_rows: list[int] = []
    scored_rows: list[int] = []
    under_way: list[tuple[int, int]] = []
    for chunk in chunks:
        sequence = chunk.sequence
        start = sequence.num_computed
        end = start + chunk.num_tokens
        if sequence.num_scored < sequence.num_prompt:
            shift = len(token_ids) - start - 1
            scored_rows.extend(shift + position for position in chunk.scored)
        token_ids.extend(sequence.tokens[start:end])
        if end > len(sequence.tokens):
            assert before is not None
            under_way.append((len(token_ids), before.rows[sequence]))
            token_ids.append(0)
        positions.extend(range(start, end))
        if chunk.completes:
            logit_rows.append(len(token_ids) - 1)
    width = max(len(table) for table in block_tables)
    padded = [[*table, *[0] * (width - len(table))] for table in block_tables]
    device = kv.device
    ids = upload(token_ids, device)
    if under_way and before is not None:
        to, source = upload(torch.tensor(under_way).t().contiguous(), device)
        ids[to] = before.tokens[source]
    return StepInput(
        token_ids=ids,
        positions=upload(positions, device),
        query_lens=tuple(chunk.num_tokens for chunk in chunks),
        context_lens=tuple(chunk.sequence.num_computed + chunk.num_tokens for chunk in chunks),
        block_tables=upload(padded, device),
        kv=kv,
        logit_rows=upload(logit_rows + scored_rows, device, torch.int64),
    )
