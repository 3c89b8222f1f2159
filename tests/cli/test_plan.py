"""``aegaeon plan``, as it is typed."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from aegaeon.cli.app import main

QUICK = "--models 6 --rate 0.4 --seconds 10 --output-tokens 60 --ttft-s 2 --tpot-s 0.04"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("--models 0", "0 models for 60.0 s: both must be positive"),
        ("--models many", "Invalid value for '--models'"),
        ("--rate 0", "is 0.0 requests/s; it must be positive"),
        ("--rate nan", "is nan requests/s; it must be positive"),
        ("--profile Qwen2.5-7", "unknown model 'Qwen2.5-7'; did you mean Qwen2.5-7B?"),
        ("--input-tokens 0", "a mean length is 0.0 tokens; it must be at least 1"),
        ("--device H900", "unknown device 'H900'; did you mean H800?"),
        ("--tpot-s 0.01", "a decode step alone takes at least 12.6 ms on H800"),
        ("--ttft-s -1", "the TTFT objective is -1.0 s; it must be positive"),
        ("--targets 1.5", "a target is 1.5; it must be between 0 and 1"),
        ("--engines-per-node 0", "at most 0 engines per node; at least 1 must be allowed"),
        ("--max-engines 0", "at most 0 engines; at least 1 must be allowed"),
        ("--seeds 0", "there are 0 seeds; at least 1 is needed"),
        ("--policies publishd", "unknown policy 'publishd'; did you mean published?"),
        ("--mix absent.csv", "absent.csv: No such file"),
        ("--workload absent", "unknown workload 'absent'; there are: synth-16-0.1"),
    ],
)
def test_bad_input_is_one_line(
    arguments: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert problem in err


def test_the_quick_case_gives_a_table_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = "deadline,request-level"
    command = f"plan {QUICK} --profile Qwen2.5-7B --policies {policies} --out {tmp_path}"
    assert main(command.split()) == 0
    out = capsys.readouterr().out
    assert out.count("90% of deadlines: ") == out.count("99% of deadlines: ") == 2
    assert "Knee: " in out
    rows = list(csv.DictReader((tmp_path / "plan.csv").open()))
    assert {row["policy"] for row in rows} == set(policies.split(","))
    assert "knee of deadline" in (tmp_path / "plan.svg").read_text()


def test_a_mix_is_planned_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(
        "models:\n"
        "  - {name: chat, count: 4, profile: Qwen2.5-7B, rate: 0.3, ttft_s: 1, tpot_s: 0.03}\n"
        "  - {name: batch, profile: Llama-2-13B, rate: 0.5, ttft_s: 60, output_tokens: 40}\n"
    )
    assert main(f"plan --mix {path} --seconds 10 --seeds 2 --json".split()) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert [need["target"] for need in plan["needs"]] == [0.9, 0.99]
    assert all(len(sample["shares"]) == 2 for sample in plan["samples"])
    assert 1 <= plan["needs"][0]["on_average"] <= plan["needs"][1]["on_average"]


def test_a_workload_is_planned_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    command = "plan --workload synth-16-0.1-1.0-1.0 --policies request-level --targets 0.9 --json"
    assert main(command.split()) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert all(len(sample["shares"]) == 1 for sample in plan["samples"])
