"""What `aegaeon status` finds wrong."""

from __future__ import annotations

from aegaeon.cli.status import find_problems
from aegaeon.v1 import cluster_pb2


def test_a_missing_rank_is_named() -> None:
    engine = cluster_pb2.EngineInfo(
        engine_id="node_0/4",
        node_id="node_0",
        worker_indexes=[4, 6],
        missing_worker_indexes=[5],
    )
    problems = find_problems(cluster_pb2.RuntimeSnapshot(engines=[engine]))
    assert problems == [
        "no engine is ready",
        "engine node_0/4 lacks worker node_0/5 (rank 1 of 3)",
    ]
