"""The contract holds for a program that shares no code with this project."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aegaeon import LLMService, NodeConfig, Request
from aegaeon.model_spec import ModelSpec
from tests.worker.models.tiny import make_checkpoint

PROGRAM = Path(__file__).parents[2] / "examples" / "node" / "main.js"
PROMPT = [5, 6, 7]
NEW_TOKENS = 16
MIB = 1 << 20


def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["node", str(PROGRAM), *arguments], capture_output=True, text=True, timeout=50, check=False
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    folder = make_checkpoint("llama", tmp_path_factory.mktemp("model"))
    return ModelSpec("tiny/llama", str(folder))


@pytest.fixture(scope="module")
def service(model: ModelSpec) -> Iterator[LLMService]:
    node = NodeConfig(
        node_id="node_0",
        num_prefill_engines=0,
        num_decode_engines=0,
        num_engines=1,
        cpu_num_slabs=2,
        cpu_slab_size_bytes=16 * MIB,
        model_cache_size=64 * MIB,
        device_memory_bytes=256 * MIB,
        cached_models=[model],
    )
    with LLMService([node]) as service:
        yield service


def test_lists_generates_and_cancels(service: LLMService, model: ModelSpec) -> None:
    done = run_program(service.address, model.name, ",".join(map(str, PROMPT)))
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert lines["models"] == model.name
    *tokens, end = lines[f"tokens of {model.name}"].split()
    assert end == "(LENGTH)"
    assert list(map(int, tokens)) == python_tokens(service, model)
    assert "no request is active" in lines["cancelled"]
    assert service.runtime().statistics.cancelled == 1


def test_reports_what_the_scheduler_refuses(service: LLMService) -> None:
    done = run_program(service.address, "nobody/knows-it")
    assert done.returncode == 1
    assert "NOT_FOUND" in done.stderr
    assert "nobody/knows-it" in done.stderr


def test_reports_an_unreachable_scheduler(tmp_path: Path) -> None:
    done = run_program(f"unix:{tmp_path}/nobody.sock")
    assert done.returncode == 1
    assert "UNAVAILABLE" in done.stderr


def python_tokens(service: LLMService, model: ModelSpec) -> list[int]:
    """What the Python client gets for the same request."""
    request = Request(
        model=model,
        arrival_time=0.0,
        request_id=0,
        prompt_token_ids=PROMPT,
        decode_tokens=NEW_TOKENS,
        ignore_eos=True,
    )
    (output,) = service.serve([request])
    assert isinstance(output, list), output
    return [step.new_token_id for step in output]
