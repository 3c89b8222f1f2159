"""Looking at a cluster, and putting load on it."""

from __future__ import annotations

import csv
import itertools
import json
import signal
from pathlib import Path

import pytest

from aegaeon.cli.app import main
from aegaeon.errors import ConfigError
from aegaeon.load.arrivals import Drawn, Limits, LoadModel, drawn_entries, requests_of
from aegaeon.load.report import Quantiles, distribution
from tests.cli.conftest import Command
from tests.integration.daemons import until

MODELS = [LoadModel("a", 100, 64), LoadModel("b", 100, 16)]
SEVEN = ("--max-tokens", "7", "--ignore-eos")
USES = ("weights", "kv", "free")
LOAD = "--rates 4,8 --seconds 1.5 --input-tokens 6 --output-tokens 4 --ttft-s 60 --tpot-s 60"


@pytest.mark.parametrize("way", ["--http", "--grpc"])
def test_load_is_reported_with_pictures(
    instance: Command, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *LOAD.split(), way, "--out", str(tmp_path / "out"), "--json"]) == 0
    out, err = capsys.readouterr()
    runs = json.loads(out)
    assert [run["rate"] for run in runs] == [4.0, 8.0]
    assert "8 requests/s per model" in err
    for run in runs:
        assert run["failed"] == {}
        assert run["token_attainment"] == run["request_attainment"] == 1.0
        assert 0 < run["ttft"]["p50"] <= run["ttft"]["p99"] <= run["ttft"]["max"]
    rows = list(csv.DictReader((tmp_path / "out" / "requests.csv").open()))
    assert len(rows) == sum(run["requests"] for run in runs)
    assert {row["model"] for row in rows} == {"long", "short"}
    assert all(2 <= int(row["output_tokens"]) <= 6 for row in rows)
    for name in ("ttft", "tpot", "attainment"):
        assert (tmp_path / "out" / f"{name}.svg").read_text().startswith("<svg")


def test_failures_are_counted_by_name(
    instance: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    load = "--rates 4 --seconds 1 --output-tokens 20000 --request-timeout-s 0.2"
    assert main(["bench", "long", *load.split()]) == 0
    assert "DEADLINE_EXCEEDED" in capsys.readouterr().out


def test_the_screen_shows_who_runs_what_until_ctrl_c_frees_it(
    instance: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    load = "generate long ab --raw --max-tokens 30000 --ignore-eos"
    busy = instance.start(*load.split())
    assert busy.stdout is not None
    assert busy.stdout.read(1)
    assert main(["top", "--once", "--interval-s", "0.5"]) == 0
    out = capsys.readouterr().out
    assert "node_0/0" in out
    assert "1 requests, 0 wait for their first token" in out
    assert main(["top", "--once", "--interval-s", "0.5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [engine["model"] for engine in told["engines"]] == ["long"]
    assert told["tokens_per_s"] > 0
    busy.send_signal(signal.SIGINT)
    _, err = busy.communicate(timeout=30)
    assert (busy.returncode, err) == (130, "error: interrupted\n")

    def idle() -> bool:
        assert main(["status", "--json"]) == 0
        return not json.loads(capsys.readouterr().out)["runtime"]["active_requests"]

    until(idle, what="the sequence is freed")


def test_arrivals_are_poisson_and_the_same_again() -> None:
    drawn = Drawn(50.0, 100.0, 10, 20, seed=3)
    entries = drawn_entries(drawn, MODELS)
    assert entries == drawn_entries(drawn, MODELS)
    assert [e.arrival_s for e in entries] == sorted(e.arrival_s for e in entries)
    of_a = [entry for entry in entries if entry.model == "a"]
    assert len(of_a) == pytest.approx(5000, rel=0.1)
    assert of_a == [e for e in drawn_entries(drawn, MODELS[:1]) if e.model == "a"]
    assert {entry.input_tokens for entry in entries} == set(range(5, 16))
    gaps = [b.arrival_s - a.arrival_s for a, b in itertools.pairwise(of_a)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation == pytest.approx(mean, rel=0.1)  # as of no other arrivals without memory
    with pytest.raises(ConfigError, match="no request arrives within"):
        drawn_entries(Drawn(0.001, 0.1, 10, 20, seed=3), MODELS)


def test_requests_fit_the_context() -> None:
    entries = drawn_entries(Drawn(20.0, 10.0, 60, 40, seed=1), MODELS)
    for request in requests_of(entries, MODELS, Limits(1, 1, 1), seed=1):
        limit = next(m.max_model_len for m in MODELS if m.name == request.model_name)
        assert 1 <= len(request.prompt_token_ids) <= limit - request.decode_tokens


def test_quantiles_are_of_values_that_are_there() -> None:
    values = [None, *(float(n) for n in range(1, 101))]
    found = Quantiles.of(values)
    assert (found.mean, found.p50, found.p99, found.max) == (50.5, 50.0, 99.0, 100.0)
    assert Quantiles.of([None]).p50 is None
    line = distribution(values)
    assert line[0] == (1.0, 0.01)
    assert line[-1] == (100.0, 1.0)
    assert distribution([]) == []


def test_every_process_tells_what_it_did(
    instance: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    before = instance.metrics()
    assert main(["generate", "long", "ab", "--raw", *SEVEN, "--json"]) == 0
    assert main(["generate", "long", "ab", "--raw", "--no-such-option"]) == 2
    assert main(["generate", "absent", "ab"]) == 1
    prompt = json.loads(capsys.readouterr().out)["usage"]["prompt_tokens"]
    after = instance.metrics()
    grown = {key: value - before.get(key, 0) for key, value in after.items()}
    expected = {
        ("aegaeon_http_requests_total", "POST", "/v1/completions", "200"): 1,
        ("aegaeon_http_errors_total", "model_not_found", "/v1/chat/completions"): 1,
        ("aegaeon_requests_ended_total", "long", "finished"): 1,
        ("aegaeon_generation_tokens_total", "long"): 7,
        ("aegaeon_time_to_first_token_seconds_count", "long"): 1,
        ("aegaeon_time_per_output_token_seconds_count", "long"): 1,
        ("aegaeon_worker_tokens_total", "node_0/0", "prefill"): prompt,
        ("aegaeon_worker_tokens_total", "node_0/0", "decode"): 6,
        ("aegaeon_worker_step_seconds_count", "node_0/0"): 7,
    }
    assert {key: grown.get(key) for key in expected} == expected
    assert after["aegaeon_worker_weight_cache_total", "node_0/0", "miss"] >= 2
    pool = [after["aegaeon_worker_device_memory_bytes", "node_0/0", use] for use in USES]
    assert sum(pool) == 128 << 20
    assert after["aegaeon_engine_ready", "node_0/0", "simple"] == 1
