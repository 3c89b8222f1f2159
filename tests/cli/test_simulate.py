"""``aegaeon simulate``, as it is typed."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from aegaeon.cli.app import main

MIX = "name,count,profile,rate,tpot_s\nhot,1,Qwen2.5-7B,2,0.05\ncold,3,Yi-1.5-9B,0.2,\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("--policies best", "unknown policy 'best'; there are: deadline, "),
        ("--policies deadlin", "unknown policy 'deadlin'; did you mean deadline?"),
        ("--device H80", "unknown device 'H80'; did you mean H800?"),
        ("--profile Qwen2.5", "unknown model 'Qwen2.5'; did you mean Qwen2.5-7B?"),
        ("--engines 0", "there are 0 engines; at least 1 is needed"),
        ("--nodes 0", "there are 0 nodes; at least 1 is needed"),
        ("--nodes 3", "16 engines cannot be shared equally by 3 nodes"),
        ("--link nan", "the link is nan GB/s; it must be positive"),
        ("--models 0", "--models is '0'; every number must be positive"),
        ("--models 2.5", "there are 2.5 models; it must be a whole number"),
        ("--models 2,3 --rates 1,2", "several --models and several --rates; vary one of them"),
        ("--rates fast", "--rates is 'fast'; it must be numbers with commas between"),
        ("--seconds nan", "80 models for nan s: both must be positive"),
        ("--seconds 0.01 --models 1", "no request arrives within 0.01 s"),
        ("--ttft-s 0", "the TTFT objective is 0.0 s; it must be positive"),
        ("--tpot-s nan", "the TPOT objective is nan s; it must be positive"),
        ("--tpot-s 0.01", "is 10 ms, but a decode step alone takes at least 12.6 ms on H800"),
        ("--workload absent.csv", "absent.csv: cannot be read: No such file"),
        ("--workload synth-81-0.1-1.0-1.0", "did you mean synth-80-0.1-1.0-1.0?"),
        ("--mix absent.yaml", "absent.yaml: No such file"),
        ("--suite all", "--suite writes a folder; name it with --out"),
        ("--suite modls --out .", "unknown part of the suite 'modls'; did you mean models?"),
        ("--engines x", "Invalid value for '--engines'"),
        ("--modles 8", "No such option: --modles"),
    ],
)
def test_bad_input_is_one_line(
    arguments: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    assert problem in err


def test_results_are_written_for_people_and_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "folder"
    assert main(f"simulate --models 2,3 --seconds 10 --out {out}".split()) == 0
    assert "Capacity where 90 %" in capsys.readouterr().out
    assert (out / "attainment.svg").read_text().startswith("<svg")
    rows = list(csv.DictReader((out / "summary.csv").open()))
    policies = {row["policy"] for row in rows}
    assert {"deadline", "published", "request-level", "static", "bound"} <= policies
    assert len(rows) == 2 * len(policies)
    assert len(list(out.glob("requests-*.csv"))) == 2 * (len(policies) - 1)


def test_json_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--models", "2,3", "--seconds", "10", "--policies", "deadline", "--json"]
    assert main(["simulate", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["x"] == "models"
    assert [(row["x"], row["policy"]) for row in found["points"]] == [
        (2, "deadline"),
        (2, "bound"),
        (3, "deadline"),
        (3, "bound"),
    ]
    assert found["capacity"] == {"deadline": None, "bound": None}


def test_workloads_of_one_size_show_no_capacity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.csv"
    path.write_text("Request Time,Model Name,Input Length,Output Length\n00:00:01,m,3,4\n")
    files = ["--workload", str(path)] * 2
    assert main(["simulate", "--policies", "deadline", *files]) == 0
    assert "Capacity" not in capsys.readouterr().out


def test_models_of_a_mix_keep_their_own_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mix.csv"
    path.write_text(MIX)
    command = f"simulate --mix {path} --scales 1,3 --seconds 5 --policies request-level --json"
    assert main(command.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["x"] == "multiple of the mix's rates"
    assert [row["x"] for row in found["points"]] == [1, 1, 3, 3]


def test_own_profiles_are_used_and_refused_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models.csv").write_text(
        "name,profile,packed_bytes,kv_token_bytes\nmine,p,20000000000,1000\n"
    )
    head = "device,model,input_tokens,batch_size,prefill_seconds,decode_step_seconds\n"
    rows = "H100,p,16,1,0.01,0.01\nH100,p,512,1,0.03,0.01\nH100,p,16,8,0.01,0.02\n"
    profiles = tmp_path / "latency_profiles.csv"
    command = (
        f"simulate --data {tmp_path} --profile mine --device H100 --models 2 --seconds 10 "
        "--policies deadline --json"
    ).split()
    profiles.write_text(head + rows)
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["points"][0]["token_attainment"] == 1.0
    profiles.write_text(head + rows + "H100,p,32,1,fast,0.01\n")
    assert main(command) == 2
    assert f"{profiles}:5: prefill_seconds is 'fast'" in capsys.readouterr().err


def test_a_process_of_its_own_simulates_a_shipped_workload() -> None:
    program = "import sys; from aegaeon.cli.app import main; sys.exit(main())"
    arguments = "simulate --workload synth-16-0.1-1.0-1.0 --policies request-level --json"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments.split()],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    first, _ = json.loads(done.stdout)["points"]
    assert (first["workload"], first["policy"]) == ("synth-16-0.1-1.0-1.0", "request-level")
    assert first["token_attainment"] > 0.9
