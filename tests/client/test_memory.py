"""Sizing nodes from the machine, and refusing what it does not have."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon import NodeConfig
from aegaeon.errors import ConfigError, ErrorReason, ResourceExhaustedError
from aegaeon.local.memory_plan import plan_memory
from aegaeon.machine import Machine, _cgroup_limit, detect_machine
from aegaeon.models import ModelSpec

GIB = 1024**3
MACHINE = Machine(
    memory_total=24 * GIB,
    memory_available=22 * GIB,
    shm_dir="/dev/shm",
    shm_total=24 * GIB,
    shm_free=24 * GIB,
    cpus=2,
)


def node(name: str = "node_0", **fields: Any) -> NodeConfig:
    base: dict[str, Any] = {"num_prefill_engines": 0, "num_decode_engines": 0, "num_engines": 1}
    return NodeConfig(name, **{**base, **fields})


@given(
    available=st.integers(2 * GIB, 4096 * GIB),
    shm=st.integers(GIB, 4096 * GIB),
    nodes=st.integers(1, 4),
    engines=st.integers(1, 8),
)
def test_defaults_always_fit_the_machine(
    available: int, shm: int, nodes: int, engines: int
) -> None:
    machine = replace(
        MACHINE,
        memory_total=available,
        memory_available=available,
        shm_total=shm,
        shm_free=shm,
    )
    plans = plan_memory([node(f"n{i}", num_engines=engines) for i in range(nodes)], machine)
    host = sum(p.cpu_num_slabs * p.cpu_slab_bytes + p.cache_bytes for p in plans)
    device = sum(plan.device_bytes * engines for plan in plans)
    assert host <= shm
    assert host + device <= available
    for plan in plans:
        assert min(plan.cpu_num_slabs, plan.cpu_slab_bytes, plan.cache_bytes) > 0


def test_the_well_known_example_runs_on_24_gib_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    example = node(cpu_num_slabs=8, cpu_slab_size_bytes=GIB, model_cache_size=20 * GIB)
    with caplog.at_level(logging.WARNING):
        [plan] = plan_memory([example], MACHINE)
    assert (plan.cpu_num_slabs, plan.cpu_slab_bytes) == (8, GIB)
    total = 8 * GIB + plan.cache_bytes + plan.device_bytes
    assert GIB < plan.cache_bytes < 20 * GIB
    assert total <= MACHINE.memory_available
    assert "model_cache_size is cut from 20.0 GiB" in caplog.text


@pytest.mark.parametrize(
    ("fields", "name", "asked"),
    [
        ({"cpu_num_slabs": 128, "cpu_slab_size_bytes": GIB}, "cpu_num_slabs", "128.0 GiB"),
        ({"model_cache_size": 128 * GIB}, "model_cache_size", "128.0 GiB"),
        ({"device_memory_bytes": 30 * GIB}, "device_memory_bytes", "30.0 GiB"),
        ({"device_memory_bytes": 8 * GIB, "num_engines": 3}, "device_memory_bytes", "24.0 GiB"),
    ],
)
def test_a_budget_above_the_machine_is_refused_with_both_numbers(
    fields: dict[str, Any], name: str, asked: str
) -> None:
    with pytest.raises(ResourceExhaustedError) as caught:
        plan_memory([node(**fields)], MACHINE)
    text = str(caught.value)
    assert name in text
    assert asked in text
    assert "22.0 GiB" in text
    assert caught.value.reason is ErrorReason.INSUFFICIENT_MEMORY


def test_a_cache_that_the_machine_could_hold_is_cut_on_a_busy_day() -> None:
    busy = replace(MACHINE, memory_available=16 * GIB)
    [plan] = plan_memory([node(model_cache_size=20 * GIB)], busy)
    assert GIB < plan.cache_bytes < 16 * GIB


def test_small_shared_memory_is_named_with_its_size() -> None:
    machine = replace(MACHINE, shm_free=64 * 1024**2)
    with pytest.raises(ResourceExhaustedError, match="67108864 bytes\\) free in /dev/shm"):
        plan_memory([node(cpu_num_slabs=2, cpu_slab_size_bytes=64 * 1024**2)], machine)
    plan_memory([node()], machine)


def test_slabs_and_pools_that_leave_no_room_for_weights_are_refused() -> None:
    both = node(cpu_num_slabs=12, cpu_slab_size_bytes=GIB, device_memory_bytes=10 * GIB)
    with pytest.raises(ResourceExhaustedError, match="leaves no room for weights"):
        plan_memory([both], MACHINE)


def test_this_machine_is_detected(tmp_path: Path) -> None:
    machine = detect_machine(str(tmp_path))
    assert 0 < machine.memory_available <= machine.memory_total
    assert 0 < machine.shm_free <= machine.shm_total
    assert machine.cpus > 0
    with pytest.raises(ConfigError, match=r"shm_dir .*nothing is not a folder"):
        detect_machine(str(tmp_path / "nothing"))


def test_the_tightest_enclosing_cgroup_counts(tmp_path: Path) -> None:
    group = tmp_path / "a" / "b"
    group.mkdir(parents=True)
    for folder, limit, usage in ((group, "max", "10"), (group.parent, "1000", "400")):
        (folder / "memory.max").write_text(limit)
        (folder / "memory.current").write_text(usage)
    (group.parent / "memory.stat").write_text("anon 1\ninactive_file 100\n")
    membership = tmp_path / "membership"
    membership.write_text("0::/a/b\n")
    assert _cgroup_limit(tmp_path, membership) == (1000, 700)
    membership.write_text("0::/elsewhere\n")
    assert _cgroup_limit(tmp_path, membership) is None


def test_the_older_cgroups_count_too(tmp_path: Path) -> None:
    group = tmp_path / "memory"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text("1000")
    (group / "memory.usage_in_bytes").write_text("300")
    membership = tmp_path / "membership"
    membership.write_text("3:cpuset:/\n4:memory:/inside\n0::/\n")
    assert _cgroup_limit(tmp_path, membership) == (1000, 700)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_engines": 0}, "num_engines: expected at least 1"),
        ({"num_prefill_engines": 1}, "excludes num_prefill_engines"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size: expected an integer of at least 1"),
        ({"cpu_num_slabs": 0}, "cpu_num_slabs: expected an integer of at least 1, got 0"),
        ({"model_cache_size": 1.5}, "model_cache_size: expected an integer"),
        ({"num_engines": True}, "num_engines: expected an integer"),
        ({"cached_models": ["m"]}, r"cached_models\[0\]: expected a ModelSpec"),
        ({"config_path": "/nowhere.yaml"}, "nowhere.yaml: cannot be read"),
    ],
)
def test_a_wrong_node_is_refused_by_field(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        node(**fields)


def test_nodes_compare_and_are_frozen() -> None:
    spec = ModelSpec("m", "/m")
    assert node(cached_models=[spec]) == node(cached_models=(spec,))
    with pytest.raises(AttributeError):
        node().num_engines = 2  # type: ignore[misc]
