"""What ``aegaeon status`` prints for people."""

from __future__ import annotations

import pytest

from aegaeon.cli import status
from aegaeon.cli.target import Target
from aegaeon.v1 import cluster_pb2


def test_an_engine_is_one_line_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In a log or a pipe, where a table of 80 columns would fold every word."""
    engine = cluster_pb2.EngineInfo(
        engine_id="node-7/0",
        node_id="node-7",
        role=cluster_pb2.ENGINE_ROLE_SIMPLE,
        worker_indexes=[0],
        ready=True,
        current_model="Qwen3-0.6B",
        tokens=123_456,
    )
    worker = cluster_pb2.WorkerInfo(
        node_id="node-7",
        device=cluster_pb2.DeviceFacts(kind="cuda", name="NVIDIA H200"),
        connected=True,
    )
    snapshot = cluster_pb2.RuntimeSnapshot(engines=[engine], workers=[worker])
    status._show(Target("127.0.0.1:7700"), snapshot, [])
    [line] = [line for line in capsys.readouterr().out.splitlines() if "node-7/0" in line]
    for word in ("NVIDIA H200", "simple", "Qwen3-0.6B", "123456"):
        assert word in line
