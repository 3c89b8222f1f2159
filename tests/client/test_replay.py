"""Replaying workloads: pace, figures, files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from aegaeon import LLMService, Request, StepOutput
from aegaeon.errors import ConfigError, EngineError
from aegaeon.models import ModelSpec
from aegaeon.replay import summarise, to_record
from aegaeon.workload import read_workload
from tests.client.conftest import RunningStub

WORKLOAD = """\
Request Time,Model Name,Input Length,Output Length
00:00:01.500,b,3,2
00:00:01.250,a,2,4
"""


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "workload.csv"
    path.write_text(WORKLOAD)
    return path


def test_a_workload_is_read_in_order_of_arrival(workload: Path) -> None:
    first, second = read_workload(workload)
    assert (first.arrival_s, first.model, first.input_tokens, first.output_tokens) == (
        1.25,
        "a",
        2,
        4,
    )
    assert second.arrival_s == 1.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Request Time,Model Name\n", "has no column Input Length, Output Length"),
        (WORKLOAD[: WORKLOAD.index("\n") + 1], "has no requests"),
        (WORKLOAD + "soon,a,1,1\n", r"workload\.csv:4: Request Time is 'soon'; it must be HH:MM"),
        (WORKLOAD + "0:0:nan,a,1,1\n", r"workload\.csv:4: Request Time is '0:0:nan'"),
        (WORKLOAD + "00:00:61,a,1,1\n", r"workload\.csv:4: Request Time is '00:00:61'"),
        (WORKLOAD + "00:00:02,,1,1\n", r"workload\.csv:4: Model Name is empty"),
        (WORKLOAD + "00:00:02,a,0,1\n", "Input Length is '0'; it must be a whole number of at"),
        (WORKLOAD + "00:00:02,a,1,-1\n", "Output Length is '-1'; it must be a whole number of at"),
        (WORKLOAD + "00:00:02,a,1,x\n", "Output Length is 'x'; it must be a whole number of at"),
        (WORKLOAD + "00:00:02,a\n", r"workload\.csv:4: has more or fewer fields"),
        (WORKLOAD + "00:00:02,a,1,1,1\n", r"workload\.csv:4: has more or fewer fields"),
        (WORKLOAD + '"open,a,1,1\n', "is not a CSV file"),
    ],
)
def test_a_wrong_workload_is_refused_by_line(workload: Path, text: str, words: str) -> None:
    workload.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_workload(workload)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.csv: cannot be read: No such file"):
        read_workload(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(WORKLOAD.encode() + b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"binary\.csv: is not a CSV file in UTF-8"):
        read_workload(tmp_path / "binary.csv")


def test_a_workload_is_served_at_its_pace_and_reported(
    service: LLMService, stub: RunningStub, workload: Path, tmp_path: Path
) -> None:
    statistics = service.replay(
        tmp_path / "out" / "result", workload, models={"a": ModelSpec("echo"), "b": "echo"}
    )
    assert (statistics.requests, statistics.failed, statistics.output_tokens) == (2, 0, 6)
    assert statistics.attainment == 1.0
    assert json.loads((tmp_path / "out" / "result.json").read_text())["requests"] == 2
    with (tmp_path / "out" / "result.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["output_tokens"] for row in rows] == ["4", "2"]
    assert float(rows[1]["arrival_s"]) == pytest.approx(0.25, abs=1e-3)
    assert 0 <= float(rows[1]["ttft_s"]) < 5
    submits = [submit.request for submit in stub.state.submits]
    assert [len(request.prompt_token_ids) for request in submits] == [2, 3]
    assert all(token < 1000 for request in submits for token in request.prompt_token_ids)
    assert all(request.stop.ignore_eos for request in submits)


def test_attainment_counts_each_tokens_deadline() -> None:
    spec = ModelSpec("m", ttft_slo_s=1.0, tpot_slo_s=0.5)
    request = Request(spec, 0.0, 7, [1], 4)
    times = [0.9, 1.6, 1.9, 2.4]  # due at 1, 1.5, 2, 2.5
    steps = [StepOutput(1, None, 0, int((100 + t) * 1e9)) for t in times]
    record = to_record(request, 100.0, 98.0, steps)
    assert (record.attainment, record.arrival_s, record.ttft_s) == (0.75, 2.0, pytest.approx(0.9))
    assert record.tpot_s == pytest.approx(0.5)
    failed = to_record(request, 100.0, 98.0, EngineError("broken"))
    assert failed.error == "EngineError: broken"
    statistics = summarise([record, failed], [request, request])
    assert statistics.attainment == 3 / 8
    assert statistics.duration_s == pytest.approx(4.4)


@pytest.mark.parametrize(
    ("times", "met"),
    [
        ([1.0, 1.5, 2.0], True),
        ([1.1, 1.2, 1.3], False),  # its first token is late
        ([0.1, 0.2, 0.8], False),  # ahead of every deadline, but for one gap too long
        ([0.3], True),
    ],
)
def test_a_request_meets_every_gap_or_it_does_not(times: list[float], met: bool) -> None:
    spec = ModelSpec("m", ttft_slo_s=1.0, tpot_slo_s=0.5)
    request = Request(spec, 0.0, 7, [1], len(times))
    steps = [StepOutput(1, None, 0, int((100 + t) * 1e9)) for t in times]
    record = to_record(request, 100.0, 100.0, steps)
    assert record.every_gap_met == met
    failed = to_record(request, 100.0, 100.0, EngineError("broken"))
    assert summarise([record, failed], [request, request]).every_gap_attainment == met / 2
