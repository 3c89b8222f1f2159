"""Files of measured step times seed the estimates."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from aegaeon_scheduler.__main__ import main
from aegaeon_scheduler.core.estimation.estimator import Estimator
from aegaeon_scheduler.core.estimation.profile_row import (
    Profile,
    ProfileRow,
    device_profiles,
    find_profile,
)
from aegaeon_scheduler.core.values import DeviceFacts
from aegaeon_scheduler.profile_file import read_profile
from aegaeon_scheduler.simulator.catalog import DATA

HEADER = "device,model,input_tokens,batch_size,prefill_seconds,decode_step_seconds\n"
GPU = DeviceFacts("cuda", "NVIDIA H800 80GB", 72 << 30, 32 << 20)


def shipped() -> list[ProfileRow]:
    return list(read_profile(DATA / "latency_profiles.csv"))


def profile_of(model: str) -> Profile:
    found = find_profile(device_profiles(shipped(), GPU.name), model)
    assert found is not None
    return found


def test_a_seeded_estimator_knows_its_profile_before_any_measurement() -> None:
    subject = Estimator(GPU, shipped())
    rows = profile_of("Qwen2.5-7B").rows
    errors = [
        abs(subject.step_ns("Qwen2.5-7B", row.batch_size, row.tokens) / row.decode_ns - 1)
        for row in rows
    ]
    assert median(errors) < 0.05
    prefills = [row for row in rows if row.batch_size == 1 and row.input_tokens <= 512]
    errors = [
        abs(subject.prefill_ns("Qwen2.5-7B", row.input_tokens) / row.prefill_ns - 1)
        for row in prefills
    ]
    assert median(errors) < 0.1


def test_a_fifth_of_the_rows_is_foretold_by_the_others() -> None:
    errors = []
    for model in ("llama2_13b_chat", "yi1_5_9b_chat", "qwen2_5_7b"):
        profile = profile_of(model)
        rows = profile.rows
        rest = [row for index, row in enumerate(rows) if index % 5]
        times = Estimator(GPU, rest).times(model)
        for row in rows[::5]:
            prefill, decode = profile.expected_ns(row, times)
            errors.append(abs(prefill / row.prefill_ns - 1))
            if profile.one_pass(row):
                errors.append(abs(decode / row.decode_ns - 1))
    assert median(errors) < 0.06


def test_prefills_that_were_split_are_told_from_those_that_were_not() -> None:
    whole, split = profile_of("qwen2.5-7b"), profile_of("yi-1.5-9b-chat")
    assert all(whole.one_pass(row) for row in whole.rows)
    assert {split.one_pass(row) for row in split.rows if row.tokens > 4096} == {False}


def test_measurements_overrule_a_profile() -> None:
    subject = Estimator(GPU, shipped())
    for n in range(400):
        subject.observe_step("Qwen2.5-7B", 50_000_000, 1 + n % 16, 1_000)
    assert subject.step_ns("Qwen2.5-7B", 8, 1_000) == pytest.approx(50_000_000, rel=0.05)


@pytest.mark.parametrize(
    ("device", "model", "found"),
    [
        ("NVIDIA H800 80GB", "Qwen/Qwen2.5-7B-Instruct", "qwen2_5_7b"),
        ("nvidia-h800", "qwen-2.5-7b", "qwen2_5_7b"),
        ("H800", "01-ai/Yi-1.5-9B-Chat", "yi1_5_9b_chat"),
        ("NVIDIA H200", "Qwen2.5-7B", None),
        ("H800", "Qwen2.5-72B", None),
    ],
)
def test_rows_are_found_by_the_names_of_device_and_model(
    device: str, model: str, found: str | None
) -> None:
    profile = find_profile(device_profiles(shipped(), device), model)
    assert (profile.rows[0].model if profile else None) == found


def test_rows_under_another_name_are_found_when_that_is_told() -> None:
    named = Estimator(GPU, shipped(), {"chat": "qwen2_5_7b"})
    assert named.step_ns("chat", 8, 800) == Estimator(GPU, shipped()).step_ns("qwen2.5-7b", 8, 800)
    assert named.times("chat").observed > 0
    assert named.times("other").observed == 0


def test_the_daemon_refuses_a_name_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--profile-name", "=rows"])
    assert "is not MODEL=NAME" in capsys.readouterr().err


def test_the_daemon_refuses_a_malformed_profile_by_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(HEADER + "H800,m,16,1,0.01,0.01\nH800,m,16,1,zero,0.01\n")
    assert main(["--listen", f"unix:{tmp_path}/s", "--profile", str(path)]) == 1
    assert f"{path}:3: prefill_seconds is 'zero'" in capsys.readouterr().err
