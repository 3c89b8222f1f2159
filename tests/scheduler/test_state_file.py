"""A later scheduler knows what an earlier one had, whatever became of the workers."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from aegaeon.errors import ConfigError, ErrorReason
from aegaeon.v1 import cluster_pb2, model_pb2
from aegaeon_scheduler.core.cluster import Cluster
from aegaeon_scheduler.core.config import CoreConfig
from aegaeon_scheduler.core.replica import ReplicaState
from aegaeon_scheduler.core.saved import SavedCluster, SavedModel, SavedTopology
from aegaeon_scheduler.core.values import (
    DataType,
    DeviceFacts,
    ModelFacts,
    ModelSpec,
    PlacementPolicy,
    RoutingPolicy,
)
from aegaeon_scheduler.service import state_file
from aegaeon_scheduler.service.state_file import StateFile, decode, encode
from tests.scheduler.conftest import Start, until
from tests.scheduler.requests import generate_request
from tests.scheduler.stub_model import answer
from tests.scheduler.stub_settings import StubSettings
from tests.scheduler.test_generate import collect

KNOWN = SavedCluster(
    SavedTopology(("n0", "n1"), PlacementPolicy.ROUND_ROBIN, RoutingPolicy.ROUND_ROBIN, 3),
    (
        SavedModel(ModelSpec("new", "/new", DataType.FLOAT16), None, None, ("n0",)),
        SavedModel(
            ModelSpec("served", "/served", tool_parser="qwen3_coder"),
            ModelFacts("f", 1, 2, 3, 4, 5, (6, 7)),
            DeviceFacts("cuda", "H", 1 << 37, 1 << 26, 1, 2, 3),
            ("n0", "n1"),
        ),
    ),
)


def test_everything_comes_back_from_the_file() -> None:
    assert decode(encode(KNOWN)) == KNOWN
    assert decode(encode(SavedCluster())) == SavedCluster()


def test_a_file_that_cannot_be_understood_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for text in ("", "[]", "{}", '{"version": 1}', encode(KNOWN)[:-9], '{"version": 99}'):
        path.write_text(text)
        assert StateFile(path, Cluster(CoreConfig()).state).load() == SavedCluster()
        assert (tmp_path / "state.json.broken").read_text() == text
        assert not path.exists()


def test_a_later_release_s_file_costs_only_models_that_would_be_served_otherwise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after an upgrade that is taken back."""
    data = json.loads(encode(KNOWN))
    new, served = data["models"]
    new["spec"]["squeezed"] = True
    served["facts"]["layers"], served["device"]["cores"] = 32, 132
    path = tmp_path / "state.json"
    path.write_text(json.dumps(data))
    known = StateFile(path, Cluster(CoreConfig()).state).load()
    assert known == SavedCluster(KNOWN.topology, KNOWN.models[1:])
    assert "model 'new' was deployed by a later release with squeezed" in caplog.text
    assert path.exists()


def test_only_options_that_are_set_are_written() -> None:
    specs = [model["spec"] for model in json.loads(encode(KNOWN))["models"]]
    assert specs == [
        {"name": "new", "path": "/new", "dtype": DataType.FLOAT16},
        {"name": "served", "path": "/served", "dtype": 0, "tool_parser": "qwen3_coder"},
    ]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--state-file"):
        StateFile(tmp_path / "file" / "state.json", Cluster(CoreConfig()).state).load()


async def test_models_are_loaded_again_on_workers_that_know_nothing(
    start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "state.json"
    first = await start(state_file=path)
    for index in range(2):
        await first.worker(StubSettings(node_id=f"n{index}"))
    topology = cluster_pb2.ApplyTopologyRequest(
        nodes=[cluster_pb2.NodeTopology(node_id=f"n{index}", num_engines=1) for index in range(2)],
        routing_policy=cluster_pb2.ROUTING_POLICY_ROUND_ROBIN,
    )
    await first.cluster.ApplyTopology(topology)
    await first.deploy(node_ids=["n1"])
    await first.deploy("gone")
    await first.models.UndeployModel(model_pb2.UndeployModelRequest(name="gone"))
    await until(lambda: [model["spec"]["name"] for model in _models(path)] == ["m"])

    second = await start(state_file=path)
    state = second.server.driver.cluster.state
    assert state.topology == {"n0", "n1"}
    assert state.routing is RoutingPolicy.ROUND_ROBIN
    answering = asyncio.create_task(collect(second, generate_request((4,), 12)))
    await until(lambda: len(state.sequences) == 1)  # it waits for the worker
    await second.worker(StubSettings(node_id="n1"))
    assert (await answering)[0] == answer((4,), 12)
    assert "gone" not in state.models


async def test_what_is_answered_outlives_the_scheduler(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "_DELAY_S", 3600)  # nothing is written by itself
    path = tmp_path / "state.json"
    harness = await start(state_file=path)
    await harness.worker(StubSettings(node_id="n0"))
    await harness.deploy()
    assert [model["spec"]["name"] for model in _models(path)] == ["m"]
    assert _models(path)[0]["device"]  # so that requests wait for it
    node = cluster_pb2.NodeTopology(node_id="n0", num_engines=1)
    await harness.cluster.ApplyTopology(cluster_pb2.ApplyTopologyRequest(nodes=[node]))
    assert json.loads(path.read_text())["topology"]["node_ids"] == ["n0"]
    await harness.models.UndeployModel(model_pb2.UndeployModelRequest(name="m"))
    assert not _models(path)


async def test_answers_wait_for_the_write_that_has_them(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, entered, real = threading.Event(), threading.Event(), state_file._replace

    def replace(path: Path, text: str) -> None:
        entered.set()
        assert gate.wait(30)
        real(path, text)

    monkeypatch.setattr(state_file, "_replace", replace)
    path = tmp_path / "state.json"
    harness = await start(state_file=path)
    await harness.worker()
    deploying = [asyncio.create_task(harness.deploy(name)) for name in ("a", "b")]
    state = harness.server.driver.cluster.state
    ready = ReplicaState.READY
    await until(lambda: [state.model_state(name) for name in ("a", "b")] == [ready, ready])
    await until(entered.is_set)
    assert not any(task.done() for task in deploying)
    gate.set()
    for task in deploying:
        await task
    assert [model["spec"]["name"] for model in _models(path)] == ["a", "b"]


async def test_the_file_is_complete_after_a_clean_stop(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "state.json"
    harness = await start(state_file=path)
    await harness.worker()
    await harness.deploy()
    await harness.server.stop()
    assert [model["spec"]["name"] for model in _models(path)] == ["m"]


async def test_a_known_model_without_workers_is_refused_in_bounded_time(
    start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "state.json"
    path.write_text(encode(KNOWN))
    harness = await start(state_file=path, recovery_timeout_ns=200_000_000)
    with pytest.raises(Exception) as waited:  # noqa: PT011 - its reason is looked at
        await collect(harness, generate_request((1,), 1, "served", max_model_len=4))
    assert _reason(waited.value) is not ErrorReason.MODEL_NOT_FOUND
    await until(lambda: not harness.server.driver.cluster.state.sequences)
    with pytest.raises(Exception) as refused:  # noqa: PT011
        await collect(harness, generate_request((1,), 1, "new"))
    assert _reason(refused.value) is ErrorReason.MODEL_NOT_READY


def _models(path: Path) -> list[dict[str, dict[str, str]]]:
    return list(json.loads(path.read_text())["models"]) if path.exists() else []


def _reason(error: BaseException) -> ErrorReason:
    from aegaeon.rpc.status import from_rpc_error

    return from_rpc_error(error).reason  # type: ignore[arg-type]
