"""Prompts beside decoding sequences take what the time per token leaves, and always get on."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from aegaeon_worker.engine.events import StepBatch
from aegaeon_worker.engine.prefill_pace import PrefillPace, StepLimits

MS = 1_000_000
LIMITS = StepLimits(prefill_tokens=512, mixed_prefill_tokens=64)


def step(decode_sequences: int, prefill_tokens: int, step_time_ns: int) -> StepBatch:
    return StepBatch(
        1,
        step_time_ns=step_time_ns,
        decode_sequences=decode_sequences,
        prefill_tokens=prefill_tokens,
    )


def learned(decode_ns: int, token_ns: int, steps: int = 64) -> PrefillPace:
    pace = PrefillPace(LIMITS, 1000)
    for _ in range(steps):
        pace.observe(step(0, 256, 256 * token_ns))
        pace.observe(step(8, 0, decode_ns))
        pace.observe(step(8, 128, decode_ns + 128 * token_ns))
    return pace


@given(
    decode_ns=st.integers(MS // 10, 200 * MS),
    token_ns=st.integers(1_000, 5 * MS),
    tpot_ns=st.integers(MS, 500 * MS),
)
@example(decode_ns=100 * MS, token_ns=1_000, tpot_ns=400 * MS)  # decoding is nearly all of a step
def test_a_step_stays_within_the_time_per_token_unless_it_takes_the_fewest_tokens(
    decode_ns: int, token_ns: int, tpot_ns: int
) -> None:
    tokens = learned(decode_ns, token_ns).mixed_tokens(tpot_ns)
    assert 64 <= tokens <= 512
    assert tokens == 64 or decode_ns + tokens * token_ns <= tpot_ns
    room_ns = tpot_ns // 2 - decode_ns
    assert tokens == 512 or tokens * token_ns * 2 >= room_ns, "half of the time is left unused"


def test_fast_devices_take_whole_chunks_and_slow_ones_the_fewest() -> None:
    assert learned(6 * MS, 22_000).mixed_tokens(100 * MS) == 512
    assert learned(42 * MS, 1_500_000).mixed_tokens(100 * MS) == 64


def test_without_a_promise_or_measurements_chunks_are_short() -> None:
    assert learned(6 * MS, 22_000).mixed_tokens(0) == 64
    assert PrefillPace(LIMITS, 1000).mixed_tokens(100 * MS) == 64


def test_a_step_of_unknown_time_teaches_nothing() -> None:
    pace = learned(6 * MS, 22_000)
    before = pace.mixed_tokens(10 * MS)
    pace.observe(step(8, 512, 0))
    assert pace.mixed_tokens(10 * MS) == before


def test_a_device_that_becomes_slower_is_followed_within_a_few_dozen_steps() -> None:
    pace = learned(6 * MS, 22_000)
    for _ in range(32):
        pace.observe(step(8, 128, 6 * MS + 128 * 800_000))
    assert pace.mixed_tokens(100 * MS) < 160
