"""Input that cannot be used is refused by file, line and reason."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from aegaeon.errors import ConfigError
from aegaeon_scheduler.simulator.catalog import DATA, DEVICES, H800, read_shapes
from aegaeon_scheduler.simulator.demand import draw_workload, same_traffic, scale_lengths
from aegaeon_scheduler.simulator.errors import InputError
from aegaeon_scheduler.simulator.mix import kind_of, read_mix
from aegaeon_scheduler.simulator.objective import Objective, Objectives
from aegaeon_scheduler.simulator.profile import read_profiles
from aegaeon_scheduler.simulator.workload import find_workload, read_arrivals, shipped_workloads
from tests.scheduler.simulator.worlds import LENGTHS

PROFILE = "device,model,input_tokens,batch_size,prefill_seconds,decode_step_seconds\n"
WORKLOAD = """Request Time,Model Name,Input Length,Output Length
00:01:00,b,1,2
00:00:01.500,m,3,4
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "file.csv"
    path.write_text(text)
    return path


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
        read_profiles(written(tmp_path, "a,b\n"), "H800")
    with pytest.raises(InputError, match="No such file"):
        read_profiles(tmp_path / "absent.csv", "H800")
    (tmp_path / "file.csv").write_bytes(PROFILE.encode() + b"\xff\xfe")
    with pytest.raises(InputError, match="not a CSV file in UTF-8"):
        read_profiles(tmp_path / "file.csv", "H800")
    with pytest.raises(
        InputError, match=r"no rows of device 'B200'; devices there: A10, A100, H100, H20, H800"
    ):
        read_profiles(DATA / "latency_profiles.csv", "B200")


def test_a_workload_is_read_in_order_of_time(tmp_path: Path) -> None:
    path = written(tmp_path, WORKLOAD)
    assert [(a.time_ns, a.model) for a in read_arrivals(path)] == [
        (1_500_000_000, "m"),
        (60_000_000_000, "b"),
    ]


def test_a_larger_drawn_workload_contains_the_smaller_one() -> None:
    shapes = read_shapes(H800)
    small, large = (
        draw_workload(same_traffic(count, 0.5, shapes, LENGTHS), seconds, seed=1)
        for count, seconds in ((2, 30), (3, 40))
    )
    assert set(small) < set(large)


def test_lengths_are_stretched_to_the_given_means() -> None:
    found = scale_lengths([(10, 1), (30, 3)], inputs=100, outputs=None)
    assert found == [(50, 1), (150, 3)]
    with pytest.raises(InputError, match="a mean length is nan tokens"):
        scale_lengths(LENGTHS, None, math.nan)


def test_every_published_workload_is_shipped() -> None:
    names = shipped_workloads()
    assert len(names) == 22
    assert names[0] == "synth-16-0.1-1.0-1.0"
    assert all(read_arrivals(find_workload(name)) for name in (names[0], names[-1]))
    with pytest.raises(InputError, match=r"did you mean synth-80-0\.1-1\.0-1\.0\?"):
        find_workload("synth-80-0_1-1_0-1_0")


@pytest.mark.parametrize("name", DEVICES)
def test_models_of_every_device_have_step_times(name: str) -> None:
    (shape,) = read_shapes(DEVICES[name], ["Qwen2.5-7B"])
    assert 0 < shape.profile.decode_ns(1, 0) < shape.profile.decode_ns(64, 10_000)


def test_models_that_a_device_cannot_run_are_refused() -> None:
    with pytest.raises(InputError, match=r"unknown model 'Qwen2\.5-8B'; did you mean Qwen2\.5-7B"):
        read_shapes(H800, ["Qwen2.5-8B"])
    with pytest.raises(InputError, match="no latency profile on A10; models with one: Qwen2"):
        read_shapes(DEVICES["A10"])
    small = replace(H800, pool_bytes=16_000_000_000)
    with pytest.raises(InputError, match=r"26\.0 GB of weights, but H800 has room for 16\.0 GB"):
        read_shapes(small)


@pytest.mark.parametrize(("ttft_s", "tpot_s"), [(0, 1), (-1, 1), (1, 0), (math.nan, 1), (1, 1e9)])
def test_an_objective_must_be_positive(ttft_s: float, tpot_s: float) -> None:
    with pytest.raises(InputError, match="must be positive"):
        Objective.of_seconds(ttft_s, tpot_s)


def test_an_objective_that_no_policy_can_meet_is_refused() -> None:
    (shape,) = read_shapes(H800, ["Llama-2-13B"])
    own = {"a": Objective(), "b": Objective.of_seconds(10, 0.012)}
    with pytest.raises(
        InputError, match=r"'b' is 12 ms, but a decode step alone takes .* 12\.6 ms"
    ):
        Objectives(own=own).check({"a": shape, "b": shape}, "H800")
    with pytest.raises(InputError, match="the TTFT objective of model 'c'"):
        Objectives(Objective.of_seconds(0.001, 1)).check({"c": shape}, "H800")


MIX = """models:
  - {name: hot, profile: Qwen2.5-7B, rate: 1, ttft_s: 2, tpot_s: 0.05}
  - name: cold
    profile: Yi-1.5-9B
    count: 2
    rate: 0.01
    input_tokens: 10
"""


def test_a_mix_gives_each_model_its_own_traffic(tmp_path: Path) -> None:
    table = "name,count,profile,rate,ttft_s,tpot_s,input_tokens\n"
    rows = "hot,,Qwen2.5-7B,1,2,0.05,\ncold,2,Yi-1.5-9B,0.01,,,10\n"
    (tmp_path / "mix.yaml").write_text(MIX)
    found = read_mix(tmp_path / "mix.yaml", H800)
    assert found == read_mix(written(tmp_path, table + rows), H800)
    assert [traffic.model for traffic in found] == ["hot", "cold-0", "cold-1"]
    assert found[0].objective == Objective.of_seconds(2, 0.05)
    assert found[1].objective == Objective()
    assert sum(pair[0] for pair in found[1].lengths) / len(found[1].lengths) < 11


@pytest.mark.parametrize(
    ("good", "bad", "problem"),
    [
        ("rate: 0.01", "rate: 0", ":6: rate: Input should be greater than 0, got 0"),
        ("rate: 0.01", "rate: .nan", ":6: rate: Input should be "),
        ("    rate: 0.01", "    rat: 0.01", ":6: unknown key 'rat'; did you mean rate?"),
        ("    rate: 0.01\n", "", ":3: rate is required"),
        ("count: 2", "count: 0", ":5: count: Input should be greater"),
        (
            "name: cold",
            "name: hot\n    workload: no.csv",
            ":3: no.csv: cannot be read: No such file",
        ),
        ("Yi-1.5-9B", "Yi-1.5", ":3: unknown model 'Yi-1.5'; did you mean Yi-1.5-9B?"),
        (
            "cold\n    profile: Yi-1.5-9B\n    count: 2",
            "hot\n    profile: Yi-1.5-9B",
            "two models named",
        ),
        ("models:", "model:", ":1: a mix is a mapping with the one key 'models'"),
        ("rate: 0.01", "rate: [", "not valid YAML"),
    ],
)
def test_a_malformed_mix_is_refused_by_line(
    tmp_path: Path, good: str, bad: str, problem: str
) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(MIX.replace(good, bad))
    with pytest.raises(ConfigError, match=re.escape(problem)) as caught:
        read_mix(path, H800)
    assert str(caught.value).startswith(f"{path}:")


def test_a_malformed_mix_table_is_refused_by_line(tmp_path: Path) -> None:
    for text, problem in (
        ("name,profile,rat\n", ":1: unknown column 'rat'; did you mean rate?"),
        ("name,profile,rate\na,Yi-1.5-9B,x\n", ":2: rate: Input should be a valid number"),
        ("name,profile,rate\na,Yi-1.5-9B,1,2\n", ":2: more fields than columns"),
        ("name,profile,rate\n", ": no models"),
    ):
        with pytest.raises(InputError, match=re.escape(problem)):
            read_mix(written(tmp_path, text), H800)


def test_shipped_profiles_are_met_at_measured_points() -> None:
    llama = read_shapes(H800)[0].profile
    assert llama.prefill_ns(512) == pytest.approx(27.296e6)
    assert llama.decode_ns(16, 0) == pytest.approx(15.114e6)
    assert 15.114e6 < llama.decode_ns(20, 0) < 16.661e6
    assert llama.decode_ns(16, 10_000) > llama.decode_ns(16, 0)


def test_models_of_a_mix_are_told_by_their_entry() -> None:
    assert [kind_of(name) for name in ("chat-12", "batch", "a-b", "a-b-0", "-1")] == [
        "chat",
        "batch",
        "a-b",
        "a-b",
        "-1",
    ]
