"""Deploying, undeploying and generating, against a running instance."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import httpx
import pytest

from aegaeon.cli.app import main
from aegaeon.cli.completion import complete_models
from aegaeon.model_spec import ModelSpec
from tests.cli.conftest import Command
from tests.integration.text_model import text_model

GREEDY = ["--temperature", "0", "--max-tokens", "8", "--ignore-eos"]


@pytest.fixture(scope="module")
def address(instance: Command) -> str:
    status, out, err = instance.run("status", "--json")
    assert status == 0, err
    return str(json.loads(out)["address"])


def test_a_model_comes_and_goes(
    instance: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = text_model("third", tmp_path).path()
    assert main(["deploy", "third", "--path", path, "--max-model-len", "64"]) == 0
    out, err = capsys.readouterr()
    assert out == "third is ready on node_0.\n"
    assert err.endswith("third on node_0: loading\nthird on node_0: ready\n")
    # What is not said stays as it is.
    assert main(["deploy", "third", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "model": "third",
        "ready": ["node_0"],
        "failed": {},
        "evicted": [],
    }
    assert main(["undeploy", "third"]) == 0
    assert capsys.readouterr().out == "third has left node_0.\n"


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        ("undeploy absent", 1, "error: MODEL_NOT_FOUND: "),
        ("deploy absent --path /nowhere", 2, "error: model 'absent': its path /nowhere is not"),
        ("deploy long --max-model-len 7", 1, "error: MODEL_CONFLICT: "),
        ("deploy long --tool-parser hermes", 1, "error: MODEL_CONFLICT: "),
        ("deploy long --tool-parser hermse", 2, "error: Invalid value for '--tool-parser'"),
        ("deploy long --node absent", 1, "error: TOPOLOGY_INVALID: "),
        ("generate absent hello", 1, "error: MODEL_NOT_FOUND: "),
        ("generate long forbidden", 1, "error: CHAT_TEMPLATE_ERROR: "),
        ("generate long", 2, "error: the prompt is empty"),
        ("generate long hello --raw --system x", 2, "error: --system is a part of a chat"),
        ("generate long hello --temperature 3", 2, "error: Invalid value for '--temperature'"),
        ("generate long hello --top-p 0", 1, "error: INVALID_VALUE: top_p: "),
        ("generate long hello --url http://127.0.0.1:1", 3, "error: NOT_RUNNING: no gateway"),
        ("generate long hello --url ftp://x", 2, "error: --url 'ftp://x': expected http"),
        ("bench absent --seconds 1", 1, "error: MODEL_NOT_FOUND: not ready: absent; ready: long"),
    ],
)
def test_what_goes_wrong_is_one_line_with_its_name(
    instance: Command,
    arguments: str,
    status: int,
    problem: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(arguments.split()) == status
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(problem)


def test_a_chat_is_streamed_and_can_be_repeated(
    instance: Command, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "long", "hello", "--seed", "7", "--max-tokens", "8", "--ignore-eos"]
    assert main([*arguments, "--stats"]) == 0
    out, err = capsys.readouterr()
    assert "prompt tokens, 8 new ones" in err
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["text"] == out.removesuffix("\n")
    assert (told["finish_reason"], told["usage"]["completion_tokens"]) == ("length", 8)


def test_it_is_the_text_of_the_gateway(
    instance: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["status", "--json"]) == 0
    url = json.loads(capsys.readouterr().out)["url"]
    body = {"model": "long", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    raw = httpx.post(f"{url}/v1/completions", json={**body, "prompt": "ab cd"}).json()
    monkeypatch.setattr(sys, "stdin", io.StringIO("ab cd"))
    assert main(["generate", "long", "--raw", *GREEDY]) == 0
    assert capsys.readouterr().out.removesuffix("\n") == raw["choices"][0]["text"]


def test_a_bare_scheduler_gets_a_gateway_for_as_long_as_it_takes(
    instance: Command, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "long", "ab", "--raw", *GREEDY]) == 0
    expected = capsys.readouterr().out
    before = len(instance.surroundings.files())
    assert main(["generate", "long", "ab", "--raw", *GREEDY, "--address", address]) == 0
    assert capsys.readouterr().out == expected
    assert len(instance.surroundings.files()) == before


def test_a_model_without_a_template_is_continued_as_it_is(
    instance: Command, text_specs: list[ModelSpec], capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(text_specs[0].path()).with_name("plain")
    spec = text_model("plain", path.parent)
    (Path(spec.path()) / "chat_template.jinja").unlink()
    try:
        assert main(["deploy", "plain", "--path", spec.path()]) == 0
        capsys.readouterr()
        assert main(["generate", "plain", "ab"]) == 1
        assert "--raw" in capsys.readouterr().err
        assert main(["generate", "plain", "ab", "--raw", *GREEDY]) == 0
    finally:
        assert main(["undeploy", "plain"]) == 0


def test_the_shell_completes_deployed_models(
    instance: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert complete_models("l") == ["long"]
    assert {"long", "short"} <= set(complete_models(""))
    for name, value in (
        ("_AEGAEON_COMPLETE", "complete_bash"),
        ("COMP_WORDS", "aegaeon undeploy sh"),
        ("COMP_CWORD", "2"),
    ):
        monkeypatch.setitem(instance.surroundings.environment, name, value)
    _, out, err = instance.run()
    assert (out.split(), err) == (["short"], "")


def test_the_shell_does_not_wait_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEGAEON_ADDRESS", "unix:/nowhere")
    assert complete_models("") == []
