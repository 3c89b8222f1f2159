"""An instance from its start to its end, however that comes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from aegaeon.cli.app import main
from aegaeon.model_spec import ModelSpec
from tests.cli.conftest import Command
from tests.integration.daemons import until


@pytest.fixture
def alone(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """As `command`, with surroundings of its own, beside the shared instance."""
    from tests.integration.surroundings import Surroundings

    # Folders of its own for every test: one that fails must not fail those after it.
    run_folder = Path(tempfile.mkdtemp(prefix="alone-", dir=command.run_folder))
    shm_dir = Path(tempfile.mkdtemp(prefix="alone-", dir=command.shm_dir))
    surroundings = Surroundings(run_folder, shm_dir, tmp_path_factory.mktemp("inductor"))
    yield replace(command, surroundings=surroundings, run_folder=run_folder, shm_dir=shm_dir)
    for process in surroundings.processes():
        process.kill()
    left = surroundings.files()
    shutil.rmtree(run_folder)
    shutil.rmtree(shm_dir)
    assert left == []


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Output up to the line with ``text``."""
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"no {text!r} in {lines}; {process.communicate()}")


def test_a_running_instance_is_found_by_name_and_only_once(
    instance: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert all(
        text in out for text in ("scheduler  unix:", "gateway    http://", "node_0/0", "long")
    )
    status, out, err = instance.run("start", *instance.sizes, "--detach")
    assert (status, out) == (2, "")
    assert err.startswith("error: instance 'tests' runs already, as process ")
    assert err.count("\n") == 1


def test_status_tells_programs(instance: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert [engine["engine_id"] for engine in found["runtime"]["engines"]] == ["node_0/0"]
    assert httpx.get(f"{found['url']}/ready").json()["models"] == ["long", "short"]


def test_a_gateway_that_dies_is_back_at_its_address(
    instance: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--json"]) == 0
    url = json.loads(capsys.readouterr().out)["url"]
    [gateway] = [p for p in instance.surroundings.processes() if "aegaeon.http" in p.cmdline()]
    gateway.kill()
    gateway.wait(10)

    def ready() -> bool:
        try:
            return httpx.get(f"{url}/ready").status_code == 200
        except httpx.HTTPError:
            return False

    until(ready, 60, "the gateway is back")


def test_sigterm_ends_it_and_nothing_is_left(alone: Command, text_specs: list[ModelSpec]) -> None:
    model = f"{text_specs[0].name}={text_specs[0].path()}"
    process = alone.start("start", model, *alone.sizes, "--no-logs")
    out = read_until(process, "Ctrl-C stops it.")
    assert "gateway    http://127.0.0.1:" in out
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "long on node_0: loading\nlong on node_0: ready\n" in err
    alone.surroundings.assert_nothing_left(0)


def test_a_drain_lets_requests_end_and_takes_no_new_ones(
    alone: Command,
    text_specs: list[ModelSpec],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = f"{text_specs[0].name}={text_specs[0].path()}"
    status, out, err = alone.run("start", model, *alone.sizes, "--detach", "--json")
    assert status == 0, err
    url = json.loads(out)["url"]
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(alone.run_folder))
    body = {"model": "long", "prompt": "hello", "max_tokens": 200, "ignore_eos": True}
    [worker] = [p for p in alone.surroundings.processes() if "aegaeon_worker" in p.cmdline()]
    with ThreadPoolExecutor(3) as pool:
        # However fast the machine is, the request has not ended when the drain begins.
        worker.suspend()
        running = pool.submit(httpx.post, f"{url}/v1/completions", json=body, timeout=100)
        runtime = f"{url}/v1/aegaeon/runtime"
        until(lambda: httpx.get(runtime).json().get("active_requests"), 20, "it runs")
        stopping = pool.submit(main, ["stop", "--drain"])
        until(lambda: "1 sequences left" in capsys.readouterr().out, 20, "it drains")
        late = pool.submit(_works, url, body | {"max_tokens": 1})
        worker.resume()
        answer = running.result()
        assert answer.json()["usage"]["completion_tokens"] == 200, answer.text
        assert stopping.result() == 0
        assert not late.result(), "it was served by an instance that is being stopped"
    alone.surroundings.assert_nothing_left(20)


def _works(url: str, body: dict[str, object]) -> bool:
    try:
        return httpx.post(f"{url}/v1/completions", json=body, timeout=100).status_code == 200
    except httpx.HTTPError:
        return False


def test_ctrl_c_while_it_starts_leaves_nothing(alone: Command) -> None:
    process = alone.start("start", *alone.sizes)
    assert process.stderr is not None
    assert process.stderr.readline() == "scheduler: starting\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.read().endswith("error: interrupted\n")
    assert process.wait(60) == 130
    alone.surroundings.assert_nothing_left(0)


def test_daemons_follow_a_supervisor_that_is_killed(alone: Command) -> None:
    status, out, err = alone.run("start", *alone.sizes, "--detach", "--json")
    assert status == 0, err
    record = json.loads(out)
    assert record["ready"]
    os.kill(record["pid"], signal.SIGKILL)
    until(lambda: not alone.surroundings.processes(), 20, "daemons end")
    status, _, err = alone.run("status")
    assert (status, err.count("\n")) == (3, 1)
    assert "no instance 'tests' runs here" in err
    assert alone.run("stop")[0] == 3
    alone.surroundings.assert_nothing_left(0)


def test_what_cannot_start_is_one_line_and_leaves_nothing(alone: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    status, out, err = alone.run("start", f"bad={tmp_path}", *alone.sizes, "--detach")
    assert (status, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.startswith(f"error: CHECKPOINT_INVALID: {tmp_path}/config.json: ")
    assert "Traceback" not in err
    alone.surroundings.assert_nothing_left(0)


def test_wrong_use_is_told_before_anything_starts(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    children = set(psutil.Process().children())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = {
            f"start --port {port} --instance other": "the gateway cannot listen on 127.0.0.1:",
            "start --instance a/b": "instance name 'a/b'",
            "start --no-gateway --keys-file x": "--no-gateway: the gateway's options",
            "start =x": "model '=x': expected NAME=FOLDER",
            "start nowhere=/nowhere": "model 'nowhere': its path /nowhere is not a folder",
            "start --workers 1 --prefill-workers 1": "--workers excludes --prefill-workers",
            f"start --config {tmp_path}/absent.yaml": "absent.yaml: cannot be read",
            "start --host 0.0.0.0 --port 0 --instance other": "--insecure-bind",
            "status --instance absent": "no instance 'absent' runs here",
            "status --address unix:/nowhere --timeout-s 0.3": "no scheduler answers",
            "status --address x:1 --instance y": "name two clusters",
            "top --json": "--json needs --once",
            "bench --rates fast": "--rates is 'fast'",
        }
        for arguments, problem in cases.items():
            begin = time.monotonic()
            assert main(arguments.split()) in (2, 3), arguments
            out, err = capsys.readouterr()
            assert (out, err.count("\n")) == ("", 1), arguments
            assert problem in err
            assert time.monotonic() - begin < 5, arguments
    assert set(psutil.Process().children()) <= children  # others share their daemons
