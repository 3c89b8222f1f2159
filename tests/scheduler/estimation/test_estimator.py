"""What holds for estimates whatever is measured."""

from __future__ import annotations

import random
from math import isfinite

from hypothesis import given
from hypothesis import strategies as st

from aegaeon_scheduler.core.estimation.estimates import Estimates
from aegaeon_scheduler.core.estimation.estimator import Estimator
from aegaeon_scheduler.core.estimation.prior import ModelSize
from aegaeon_scheduler.core.values import DeviceFacts
from tests.scheduler.fake_worker import facts

MS = 1_000_000
GPU = DeviceFacts("cuda", "NVIDIA H800", 72 << 30, 32 << 20)
CPU = DeviceFacts("cpu", "x86_64", 1 << 30, 2 << 20)
SMALL = ModelSize(1 << 30, 32_768)
LARGE = ModelSize(16 << 30, 131_072)

batches = st.integers(1, 256)
contexts = st.integers(0, 1 << 20)
#: Time, decoding sequences, tokens in KV, prompt tokens, prompts.
steps = st.tuples(
    st.one_of(st.integers(0, 1 << 40), st.integers(1, 100 * MS)),
    st.integers(0, 256),
    contexts,
    st.one_of(st.just(0), st.integers(0, 8_192)),
    st.integers(0, 64),
)
turns = st.tuples(
    st.booleans(),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 36),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 36),
)


def taught(measured: list[tuple[int, int, int, int, int]], device: DeviceFacts = GPU) -> Estimator:
    subject = Estimator(device)
    subject.size_up("a", SMALL)
    for step in measured:
        subject.observe_step("a", *step)
    return subject


def steady(step_ns: int, count: int = 200) -> Estimator:
    """A model whose steps all take the same, at batches from 1 to 8."""
    return taught([(step_ns, 1 + n % 8, 100 * (n % 7), 0, 0) for n in range(count)])


@given(st.lists(steps, max_size=80), batches, contexts)
def test_step_times_are_positive_and_grow_with_batch_and_context(
    measured: list[tuple[int, int, int, int, int]], batch: int, context: int
) -> None:
    subject = taught(measured)
    here = subject.step_ns("a", batch, context)
    assert here >= 1
    assert isfinite(here)
    assert here <= subject.step_ns("a", batch + 1, context)
    assert here <= subject.step_ns("a", batch, context + 1_000)


@given(st.lists(steps, max_size=80), st.integers(1, 20_000), contexts)
def test_prefill_times_are_positive_and_grow_with_tokens_and_context(
    measured: list[tuple[int, int, int, int, int]], tokens: int, context: int
) -> None:
    subject = taught(measured)
    here = subject.prefill_ns("a", tokens, context)
    assert here >= 1
    assert isfinite(here)
    assert here <= subject.prefill_ns("a", tokens + 1, context) * (1 + 1e-9)
    assert here <= subject.prefill_ns("a", tokens, context + 1_000)


@given(st.lists(turns, max_size=40), st.integers(0, 1 << 36))
def test_switch_and_swap_times_are_never_negative_and_grow_with_bytes(
    measured: list[tuple[bool, int, int, int, int]], nbytes: int
) -> None:
    subject = taught([])
    for turn in measured:
        subject.observe_turn("a", *turn)
    assert subject.switch_ns("a") >= 0
    assert 0 <= subject.kv_swap_ns(nbytes) <= subject.kv_swap_ns(nbytes + 1)
    assert isfinite(subject.switch_ns("a") + subject.kv_swap_ns(nbytes))


@given(st.lists(steps, max_size=60), batches, contexts)
def test_the_same_measurements_give_the_same_estimates(
    measured: list[tuple[int, int, int, int, int]], batch: int, context: int
) -> None:
    one, other = taught(measured), taught(measured)
    assert one.step_ns("a", batch, context) == other.step_ns("a", batch, context)
    assert one.prefill_ns("a", batch) == other.prefill_ns("a", batch)


@given(
    st.floats(0.5, 100),
    st.floats(0, 1),
    st.floats(0, 0.002),
    st.sampled_from([GPU, CPU]),
    st.data(),
)
def test_a_linear_device_is_recovered_within_two_percent(
    fixed_ms: float, row_ms: float, token_ms: float, device: DeviceFacts, data: st.DataObject
) -> None:
    def truth(batch: int, context: int) -> int:
        return round((fixed_ms + row_ms * batch + token_ms * context) * MS)

    source = random.Random(data.draw(st.integers(0, 1 << 30)))
    points = [(source.randint(1, 32), source.randint(0, 20_000)) for _ in range(2_000)]
    subject = taught([(truth(*point), *point, 0, 0) for point in points], device)
    for batch, context in points[:50]:
        assert abs(subject.step_ns("a", batch, context) / truth(batch, context) - 1) < 0.02


@given(st.floats(0.5, 50), st.floats(0.005, 1), st.data())
def test_linear_prefills_are_recovered_within_two_percent(
    fixed_ms: float, token_ms: float, data: st.DataObject
) -> None:
    def truth(tokens: int) -> int:
        return round((fixed_ms + token_ms * tokens) * MS)

    source = random.Random(data.draw(st.integers(0, 1 << 30)))
    lengths = [round(2 ** source.uniform(0, 9)) for _ in range(2_000)]
    subject = taught([(truth(n), 0, n, n, 1) for n in lengths])
    for tokens in lengths[:50]:
        assert abs(subject.prefill_ns("a", tokens) / truth(tokens) - 1) < 0.02
    assert abs(subject.prefill_ns("a", 1_024) / (2 * truth(512)) - 1) < 0.2


def test_the_prefill_of_mixed_steps_is_learned_from_what_decoding_leaves() -> None:
    subject = steady(20 * MS)
    for n in range(200):
        tokens = 16 + n % 113
        subject.observe_step("a", (20 * MS) + tokens * MS // 4, 4, 1_000, tokens, 1)
    expected = subject.times("a").expected_ns(4, 1_000, 64, 1)
    assert abs(expected / (36 * MS) - 1) < 0.05


@given(st.one_of(st.just(1), st.integers(20 * 20 * MS, 1 << 50)), st.integers(1, 8))
def test_one_outlier_moves_a_learned_estimate_by_less_than_a_tenth(
    outlier: int, batch: int
) -> None:
    subject = steady(20 * MS)
    before = subject.step_ns("a", batch, 100)
    times = subject.times("a")
    while not times.observe(outlier, batch, 100, 0, 0):  # whichever steps are passed over
        pass
    assert abs(subject.step_ns("a", batch, 100) / before - 1) < 0.1


def test_a_slow_first_step_is_forgotten_after_a_few() -> None:
    subject = taught([(400 * MS, 1, 10, 0, 0), *[(20 * MS, 1, 10, 0, 0)] * 6])
    assert abs(subject.step_ns("a", 1, 10) / (20 * MS) - 1) < 0.25


def test_a_lasting_change_is_followed() -> None:
    subject = steady(20 * MS)
    for n in range(320):
        subject.observe_step("a", 60 * MS, 1 + n % 8, 100 * (n % 7), 0, 0)
    assert abs(subject.step_ns("a", 4, 300) / (60 * MS) - 1) < 0.1


@given(st.integers(0, 256), contexts, st.integers(0, 512))
def test_steps_without_a_time_teach_nothing(batch: int, context: int, tokens: int) -> None:
    subject = taught([(0, batch, context, tokens, 1)] * 20)
    fresh = taught([])
    assert subject.step_ns("a", 3, 100) == fresh.step_ns("a", 3, 100)
    assert subject.prefill_ns("a", 100) == fresh.prefill_ns("a", 100)


def test_estimates_are_sane_before_the_first_measurement() -> None:
    subject = Estimator(GPU)
    subject.size_up("large", LARGE)
    assert 5 * MS < subject.step_ns("large") < 50 * MS
    assert 20 * MS < subject.prefill_ns("large", 1_000) < 500 * MS
    assert 200 * MS < subject.switch_ns("large") < 2_000 * MS
    assert subject.step_ns("never heard of") >= 1


def test_a_calibrated_device_is_believed() -> None:
    fast = DeviceFacts("cuda", "new", 1, 1, 8 * 10**12, 10**11, 10**15)
    quick, usual = Estimator(fast), Estimator(GPU)
    for subject in (quick, usual):
        subject.size_up("large", LARGE)
    assert quick.step_ns("large") < usual.step_ns("large")
    assert quick.prefill_ns("large", 4_096) < usual.prefill_ns("large", 4_096)
    assert quick.switch_ns("large") < usual.switch_ns("large")


def test_a_model_never_seen_is_as_slow_as_the_measured_one_of_its_size() -> None:
    subject = Estimator(GPU)
    for model, size in (("a", SMALL), ("b", SMALL), ("c", LARGE), ("d", LARGE)):
        subject.size_up(model, size)
    before = {model: subject.step_ns(model) for model in "bd"}
    for _ in range(20):
        subject.observe_step("a", round(3 * before["b"]), 1, 1)
        subject.observe_step("c", round(before["d"] / 2), 1, 1)
    assert abs(subject.step_ns("b") / before["b"] - 3) < 0.2
    assert abs(subject.step_ns("d") / before["d"] - 0.5) < 0.05


def test_other_files_under_the_same_name_start_over() -> None:
    subject = taught([(900 * MS, 1, 10, 0, 0)] * 20)
    subject.size_up("a", SMALL)
    assert subject.step_ns("a", 1, 10) > 800 * MS
    subject.size_up("a", LARGE)
    assert subject.step_ns("a", 1, 10) < 100 * MS


def test_switches_are_learned_by_what_they_move() -> None:
    subject = Estimator(GPU)
    for model, size in (("a", SMALL), ("c", LARGE), ("d", ModelSize(8 << 30, 1))):
        subject.size_up(model, size)
    for _ in range(40):
        for model, size in (("a", SMALL), ("c", LARGE)):
            moved = size.packed_bytes
            subject.observe_turn(model, True, 7 * MS + moved // 10, moved, 0, 0)
    for model, moved in (("a", SMALL.packed_bytes), ("c", LARGE.packed_bytes), ("d", 8 << 30)):
        assert abs(subject.switch_ns(model) / (7 * MS + moved // 10) - 1) < 0.02
    for _ in range(40):  # from now on, all but a tenth has been fetched before
        moved = LARGE.packed_bytes // 10
        subject.observe_turn("c", True, 7 * MS + moved // 10, moved, 0, 0)
    assert abs(subject.switch_ns("c") / (7 * MS + LARGE.packed_bytes // 100) - 1) < 0.05


def test_engines_of_one_kind_learn_together_and_outlive_each_other() -> None:
    estimates = Estimates()
    estimates.size_up("a", facts("a"))
    one = estimates.of(GPU)
    assert estimates.of(GPU) is one
    assert estimates.of(CPU) is not one
