"""Which tokens one step computes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_worker.engine import prefill_pace
from aegaeon_worker.engine.commands import SequenceSpec, StopConditions
from aegaeon_worker.engine.events import FinishReason
from aegaeon_worker.engine.prefill_pace import PrefillPace, StepLimits
from aegaeon_worker.engine.prompt_scores import scored_pieces
from aegaeon_worker.engine.sampler import Choice, choose_tokens
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.engine.step_plan import build_input, plan_step


def make_sequence(
    prompt_tokens: int = 4,
    computed: int = 0,
    *,
    handle: int = 1,
    max_new: int = 8,
    min_new: int = 0,
    stop_ids: frozenset[int] = frozenset(),
    max_len: int = 1000,
    prompt_logprobs: int | None = None,
    told: int = 0,
) -> Sequence:
    stop = StopConditions(max_new, min_new, stop_ids, max_len)
    prompt = list(range(prompt_tokens))
    spec = SequenceSpec(
        handle, "m", prompt, [], stop, prompt_logprobs=prompt_logprobs, told_prompt_tokens=told
    )
    sequence = Sequence(spec)
    sequence.num_computed = computed
    return sequence


def greedy(logits: torch.Tensor, sequence: Sequence) -> int:
    """The only sequence's next token."""
    [choice] = choose_tokens(logits, [sequence]).wait()
    assert isinstance(choice, Choice)
    return choice.token_id


@given(
    sizes=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 299)), min_size=1, max_size=12),
    prefill=st.integers(1, 600),
    mixed=st.integers(1, 200),
)
def test_every_decoding_sequence_steps_and_prefill_stays_within_its_budget(
    sizes: list[tuple[int, int]], prefill: int, mixed: int
) -> None:
    running = [make_sequence(size, min(done, size - 1)) for size, done in sizes]
    chunks = plan_step(running, PrefillPace(StepLimits(prefill, mixed), 1000))
    decoding = [sequence for sequence in running if sequence.num_pending == 1]
    assert [chunk.sequence for chunk in chunks[: len(decoding)]] == decoding
    budget = mixed if decoding else prefill
    prefills = chunks[len(decoding) :]
    assert sum(chunk.num_tokens for chunk in prefills) <= budget
    assert all(1 <= chunk.num_tokens <= chunk.sequence.num_pending for chunk in chunks)
    assert chunks, "a step with work must compute something"
    waiting = [sequence for sequence in running if sequence.num_pending > 1]
    assert [chunk.sequence for chunk in prefills] == waiting[: len(prefills)]


def test_input_packs_chunks_and_asks_for_logits_only_where_a_token_follows() -> None:
    decode = make_sequence(17, 16)
    partial = make_sequence(40, 3)
    chunks = plan_step([partial, decode], PrefillPace(StepLimits(mixed_prefill_tokens=5), 1000))
    step = build_input(chunks, [[7, 9], [3]], torch.empty(10, 1, 2, 16, 1, 2))
    assert step.token_ids.tolist() == [16, 3, 4, 5, 6, 7]
    assert step.positions.tolist() == [16, 3, 4, 5, 6, 7]
    assert step.query_lens == (1, 5)
    assert step.context_lens == (17, 8)
    assert step.block_tables.tolist() == [[7, 9], [3, 0]]
    assert step.logit_rows.tolist() == [0]


def test_a_stop_token_ends_the_sequence_with_itself() -> None:
    sequence = make_sequence(stop_ids=frozenset({5}))
    assert sequence.append(4) is FinishReason.NONE
    assert sequence.append(5) is FinishReason.STOP


@pytest.mark.parametrize(("max_new", "max_len"), [(3, 1000), (100, 7)])
def test_limits_end_the_sequence_after_the_last_token_that_fits(max_new: int, max_len: int) -> None:
    sequence = make_sequence(4, max_new=max_new, max_len=max_len)
    reasons = [sequence.append(1) for _ in range(3)]
    assert reasons == [FinishReason.NONE, FinishReason.NONE, FinishReason.LENGTH]


def test_minimum_keeps_stop_tokens_out_until_it_is_reached() -> None:
    sequence = make_sequence(min_new=2, stop_ids=frozenset({1, 2}))
    logits = torch.tensor([[0.0, 5.0, 4.0, 1.0]])
    picked = []
    for _ in range(3):
        token = greedy(logits.clone(), sequence)
        sequence.append(token)
        picked.append(token)
    assert picked == [3, 3, 1]


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    assert greedy(torch.tensor([[1.0, 3.0, 3.0]]), make_sequence()) == 1


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    told=st.integers(0, 40),
    budget=st.integers(1, 30),
    room=st.integers(1, 30),
    losses=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=20),
)
def test_every_token_of_a_prompt_is_scored_once_whatever_is_computed_again(
    sizes: list[int], told: int, budget: int, room: int, losses: list[tuple[int, int]]
) -> None:
    pace = PrefillPace(StepLimits(budget, budget), prefill_pace._SCORED_LOGITS // room)
    running = [make_sequence(size, prompt_logprobs=1, told=min(told, size)) for size in sizes]
    running.append(make_sequence(30))
    scored: list[list[int]] = [[] for _ in running]
    while any(sequence.num_computed < sequence.num_prompt for sequence in running):
        pending = [s for s in running if s.num_computed < s.num_prompt]
        chunks = plan_step(pending, pace)
        assert chunks
        step = build_input(chunks, [[0]] * len(chunks), torch.empty(1))
        completing = sum(chunk.completes for chunk in chunks)
        rows = [step.token_ids[row].item() for row in step.logit_rows[completing:]]
        for sequence, positions in scored_pieces(chunks):
            scored[running.index(sequence)] += positions
            sequence.num_scored = positions.stop
            # A token is its own position here, and the logits of the one before score it.
            assert [rows.pop(0) + 1 for _ in positions] == list(positions)
        assert not rows
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.num_tokens
        if losses:
            index, kept = losses.pop()
            lost = running[index % len(running)]
            lost.num_computed = min(lost.num_computed, kept)
    for sequence, positions in zip(running[:-1], scored, strict=False):
        first = max(1, min(told, sequence.num_prompt))
        assert positions == list(range(first, sequence.num_prompt))
    assert scored[-1] == []
