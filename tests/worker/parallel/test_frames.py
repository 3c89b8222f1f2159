"""What one rank tells another arrives as it was."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_worker.models.interface import StepInput
from aegaeon_worker.parallel.frames import HEADER, Frame, Kind, StepFrame, number_frame, step_frame

_SEQUENCES = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 100)), min_size=1, max_size=5)


def received(sent: bytes) -> Frame:
    kind, length = HEADER.unpack_from(sent)
    assert len(sent) == HEADER.size + length
    return Frame(Kind(kind), sent[HEADER.size :])


@given(_SEQUENCES, st.integers(1, 1000), st.data())
def test_a_pass_is_the_same_on_every_rank(
    sequences: list[tuple[int, int]], model: int, data: st.DataObject
) -> None:
    query_lens = tuple(new for new, _ in sequences)
    context_lens = tuple(new + done for new, done in sequences)
    tokens = sum(query_lens)
    positions = [position for new, done in sequences for position in range(done, done + new)]
    rows = data.draw(st.lists(st.integers(0, tokens - 1), max_size=3))
    kv = torch.empty(0)
    step = StepInput(
        token_ids=torch.randint(1 << 20, (tokens,)),
        positions=torch.tensor(positions),
        query_lens=query_lens,
        context_lens=context_lens,
        block_tables=torch.randint(1 << 20, (len(sequences), 9)),
        kv=kv,
        logit_rows=torch.tensor(rows, dtype=torch.int64),
    )
    told = StepFrame(received(step_frame(model, step)))
    found = told.input(kv)
    assert told.model == model
    assert (found.query_lens, found.context_lens) == (query_lens, context_lens)
    for name in ("token_ids", "positions", "block_tables", "logit_rows"):
        assert torch.equal(getattr(found, name), getattr(step, name)), name
        assert getattr(found, name).dtype == torch.int64


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_numbers_arrive(numbers: list[int]) -> None:
    assert received(number_frame(Kind.MAP, numbers)).numbers().tolist() == numbers
