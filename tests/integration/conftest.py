"""Real daemons, shared where a test leaves them as it found them: each start imports torch."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aegaeon import LLMService
from aegaeon.demo_model import fetch_demo_model
from aegaeon.model_spec import ModelSpec
from tests.integration.daemons import Daemons, running_daemons
from tests.integration.gateways import RunningGateway, running_gateway
from tests.integration.models import LONG_CONTEXT, tiny_model
from tests.integration.text_model import (
    BEGIN_CALL,
    SHORT_CONTEXT,
    TOOL_TEMPLATE,
    UNTOLD_TEMPLATE,
    text_model,
)
from tests.integration.workload import tiny_node

#: For tests on a machine that other tests keep busy; a hang still ends.
TIMEOUT_S = 180


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session", autouse=True)
def surroundings() -> Iterator[None]:
    """Nothing to attach to, and no threads that spin where other tests need the processor."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("AEGAEON_ADDRESS", raising=False)
        patch.setenv("OMP_WAIT_POLICY", "PASSIVE")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def shm_dir() -> Iterator[Path]:
    """Shared memory of these tests alone; what is left in it at the end is a leak."""
    folder = Path(tempfile.mkdtemp(prefix="integration-", dir="/dev/shm"))
    yield folder
    left = sorted(str(path) for path in folder.rglob("*"))
    shutil.rmtree(folder)
    assert left == []


@pytest.fixture
def run_folder() -> Iterator[Path]:
    """A folder whose name is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="run-") as name:
        yield Path(name)


@pytest.fixture
def daemons(run_folder: Path, shm_dir: Path) -> Iterator[Daemons]:
    with running_daemons(run_folder, shm_dir) as daemons:
        yield daemons


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> list[ModelSpec]:
    """Three families. The first has a long context, for requests that outlast a test."""
    folder = tmp_path_factory.mktemp("tiny")
    return [
        tiny_model("llama", "llama", folder, max_position_embeddings=LONG_CONTEXT),
        tiny_model("qwen3", "qwen3", folder, seed=1),
        tiny_model("gemma2", "gemma2", folder, seed=2),
    ]


@pytest.fixture(scope="session")
def service(tiny_models: list[ModelSpec], shm_dir: Path) -> Iterator[LLMService]:
    """Three models on one engine whose device holds one. Tests leave it without requests."""
    with LLMService([tiny_node(tiny_models, shm_dir=str(shm_dir))]) as running:
        yield running


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The folder of a real model."""
    return fetch_demo_model()


@pytest.fixture(scope="session")
def text_specs(tmp_path_factory: pytest.TempPathFactory) -> list[ModelSpec]:
    """Tiny models with tokenizers: with a long context, with a short one, with one beyond what the
    device holds, one that calls tools, one that has a token for it, and one of which it is said how
    it does."""
    folder = tmp_path_factory.mktemp("text")
    return [
        text_model("long", folder),
        text_model("short", folder, context=SHORT_CONTEXT),
        text_model("vast", folder, context=2 << 20),
        text_model("tools", folder, context=4096, template=TOOL_TEMPLATE),
        text_model("marked", folder, context=4096, template=TOOL_TEMPLATE, added=BEGIN_CALL),
        replace(
            text_model("coder", folder, context=4096, template=UNTOLD_TEMPLATE),
            tool_parser="qwen3_coder",
        ),
    ]


@pytest.fixture(scope="session")
def text_gateway(
    text_specs: list[ModelSpec], tmp_path_factory: pytest.TempPathFactory, shm_dir: Path
) -> Iterator[RunningGateway]:
    """A gateway in front of them, on one engine. Tests leave it without requests."""
    with running_gateway(tmp_path_factory.mktemp("gw"), shm_dir, text_specs) as running:
        yield running
