"""Input that cannot be used is refused by file, line and reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from aegaeon_scheduler.simulator.__main__ import main
from aegaeon_scheduler.simulator.catalog import DATA, H800, read_shapes
from aegaeon_scheduler.simulator.errors import InputError
from aegaeon_scheduler.simulator.profile import read_profiles
from aegaeon_scheduler.simulator.workload import draw_workload, read_workload

WORKLOAD = "Request Time,Model Name,Input Length,Output Length\n"
PROFILE = "device,model,input_tokens,batch_size,prefill_seconds,decode_step_seconds\n"
GOOD = "00:00:01.500,m,3,4\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "file.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("1.5,m,3,4", "HH:MM:SS"),
        ("00:00:61,m,3,4", "HH:MM:SS"),
        ("00:00:01,,3,4", "Model Name is empty"),
        ("00:00:01,m,x,4", "Input Length is 'x'"),
        ("00:00:01,m,3,0", "Output Length is 0; it must be at least 1"),
        ("00:00:01,m,3", "3 fields instead of 4"),
    ],
)
def test_a_malformed_workload_row_is_named(tmp_path: Path, row: str, problem: str) -> None:
    path = written(tmp_path, WORKLOAD + GOOD + row + "\n")
    with pytest.raises(InputError, match=problem) as caught:
        read_workload(path)
    assert str(caught.value).startswith(f"{path}:3: ")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("H800,m,0,1,0.1,0.1", "input_tokens is 0"),
        ("H800,m,16,1,nan,0.1", "prefill_seconds is 'nan'"),
        ("H800,m,16,1,0.1,-2", "decode_step_seconds is '-2'"),
        ("H800,m,16,1,0.1", "5 fields instead of 6"),
    ],
)
def test_a_malformed_profile_row_is_named(tmp_path: Path, row: str, problem: str) -> None:
    path = written(tmp_path, PROFILE + row + "\n")
    with pytest.raises(InputError, match=problem) as caught:
        read_profiles(path, "H800")
    assert str(caught.value).startswith(f"{path}:2: ")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r":1: the header must be"):
        read_workload(written(tmp_path, "a,b\n"))
    with pytest.raises(InputError, match="no requests"):
        read_workload(written(tmp_path, WORKLOAD))
    with pytest.raises(InputError, match="No such file"):
        read_workload(tmp_path / "absent.csv")
    (tmp_path / "file.csv").write_bytes(WORKLOAD.encode() + b"\xff\xfe")
    with pytest.raises(InputError, match="not a CSV file in UTF-8"):
        read_workload(tmp_path / "file.csv")
    with pytest.raises(InputError, match=r"no rows of device 'B200'; devices there: H800"):
        read_profiles(DATA / "latency_profiles.csv", "B200")


def test_a_workload_is_read_in_order_of_time(tmp_path: Path) -> None:
    path = written(tmp_path, WORKLOAD + "00:01:00,b,1,2\n" + GOOD)
    assert [(a.time_ns, a.model) for a in read_workload(path)] == [
        (1_500_000_000, "m"),
        (60_000_000_000, "b"),
    ]


def test_a_larger_drawn_workload_contains_the_smaller_one() -> None:
    lengths = read_workload(DATA / "synth-40-0.1-1.0-1.0.csv")
    small, large = (draw_workload(count, 0.5, 30, lengths, seed=1) for count in (2, 3))
    assert set(small) < set(large)


def test_shipped_profiles_are_met_at_measured_points() -> None:
    llama = read_shapes(H800)[0].profile
    assert llama.prefill_ns(512) == pytest.approx(27.296e6)
    assert llama.decode_ns(16, 0) == pytest.approx(15.114e6)
    assert 15.114e6 < llama.decode_ns(20, 0) < 16.661e6
    assert llama.decode_ns(16, 10_000) > llama.decode_ns(16, 0)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--policies", "best"], "unknown policy 'best'"),
        (["--engines-per-node", "0"], "engines_per_node is 0"),
        (["--models", "0"], "must be positive"),
        (["--models", "2.5"], "must be a whole number"),
        (["--rates", "fast"], "--rates is 'fast'"),
        (["--ttft-s", "0"], "--ttft-s is 0.0; it must be positive"),
        (["--workload", "absent.csv"], "absent.csv: No such file"),
    ],
)
def test_the_command_refuses_bad_input(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert problem in capsys.readouterr().err


def test_the_command_writes_its_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"--models 2,3 --seconds 10 --out {tmp_path}".split()) == 0
    assert "capacity at 90 %" in capsys.readouterr().out
    assert (tmp_path / "attainment.svg").read_text().startswith("<svg")
    assert len((tmp_path / "summary.csv").read_text().splitlines()) == 13
    assert len(list(tmp_path.glob("requests-*.csv"))) == 10


def test_workloads_of_one_size_show_no_capacity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, WORKLOAD + GOOD)
    assert main(["--policies", "deadline", "--workload", str(path), str(path)]) == 0
    assert "capacity" not in capsys.readouterr().out
