"""Memory that is not there is refused with numbers; services on one machine stay apart."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from aegaeon import LLMService
from aegaeon.errors import AegaeonError, ErrorReason, ResourceExhaustedError
from aegaeon.model_spec import ModelSpec
from tests.integration.daemons import Daemons
from tests.integration.models import tiny_model
from tests.integration.workload import MIB, ask, tiny_node, tokens_of

PROMPT = [5, 6, 7]

Mount = Callable[[int], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mount a shared-memory folder of so many bytes, as containers have them."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    mounted: list[Path] = []

    def mount(size: int) -> Path:
        folder = tmp_path / f"shm-{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    ("share", "field"),
    [
        ({"cpu_num_slabs": 2}, "cpu_slab_size_bytes"),
        ({}, "model_cache_size"),
        ({}, "device_memory_bytes"),
    ],
)
def test_budgets_above_the_machine_are_refused_at_once(
    tiny_models: list[ModelSpec], share: dict[str, Any], field: str
) -> None:
    asked = psutil.virtual_memory().total + (1 << 30)
    start = time.monotonic()
    with pytest.raises(ResourceExhaustedError, match=field) as caught:
        LLMService([tiny_node(tiny_models, **{**share, field: asked})])
    assert time.monotonic() - start < 10  # a daemon would import torch first
    error = caught.value
    assert error.reason is ErrorReason.INSUFFICIENT_MEMORY
    assert int(error.metadata["needed_bytes"]) >= asked > int(error.metadata["available_bytes"])


def test_too_little_shared_memory_is_refused_with_folder_and_sizes(
    mount: Mount, tiny_models: list[ModelSpec]
) -> None:
    folder = mount(MIB)
    with pytest.raises(ResourceExhaustedError, match="another shm_dir") as caught:
        LLMService([tiny_node(tiny_models, shm_dir=str(folder))])
    assert str(folder) in str(caught.value)
    assert str(MIB) in str(caught.value)


def test_a_worker_started_by_hand_checks_too(mount: Mount, daemons: Daemons) -> None:
    folder = mount(MIB)
    worker = daemons.worker("127.0.0.1:1", shm_dir=folder)
    said = worker.wait_failed()
    assert str(4 * (4 << 20)) in said
    assert str(folder) in said
    assert "Traceback" not in said


def test_a_container_s_64_mib_are_enough_to_serve_and_fail_by_name_when_full(
    mount: Mount, tiny_models: list[ModelSpec], tmp_path: Path
) -> None:
    """Nothing is asked for: the sizes come from what there is."""
    folder = mount(64 * MIB)
    open_sizes = dict.fromkeys(("cpu_num_slabs", "cpu_slab_size_bytes", "model_cache_size"))
    spec = tiny_models[1]
    node = tiny_node([spec], shm_dir=str(folder), **open_sizes)
    with LLMService([node]) as service:
        wanted = tokens_of(service.serve([ask(spec, PROMPT, 16)])[0])
        (folder / "somebody-else").write_bytes(bytes(os.statvfs(folder).f_bavail * 4096))
        another = tiny_model("another", "qwen2", tmp_path)
        with pytest.raises(ResourceExhaustedError) as caught:
            asyncio.run(service.deploy_model_replicas(another))
        assert str(folder) in str(caught.value)
        assert tokens_of(service.serve([ask(spec, PROMPT, 16)])[0]) == wanted
        (folder / "somebody-else").unlink()
        asyncio.run(service.deploy_model_replicas(another))
        assert len(tokens_of(service.serve([ask(another, PROMPT, 4)])[0])) == 4
    assert list(folder.iterdir()) == []


def test_a_model_that_no_device_holds_is_refused_with_both_sizes(
    service: LLMService, tmp_path: Path
) -> None:
    large = tiny_model("large", "qwen2", tmp_path, vocab_size=200_000)
    with pytest.raises(AegaeonError) as caught:
        asyncio.run(service.deploy_model_replicas(large))
    assert caught.value.reason is ErrorReason.INSUFFICIENT_MEMORY
    assert str(64 * MIB) in str(caught.value)


def test_two_services_on_one_machine_do_not_meet(
    service: LLMService, tiny_models: list[ModelSpec], shm_dir: Path
) -> None:
    """A service is started and ended while another one serves: from the same shared memory, in a
    process that has gRPC threads already."""
    spec = tiny_models[0]
    stream = service.stream(ask(spec, PROMPT, 4_000))
    next(stream)
    with LLMService([tiny_node([spec], shm_dir=str(shm_dir))]) as second:
        assert second.address != service.address
        two = tokens_of(second.serve([ask(spec, PROMPT, 16)])[0])
    next(stream)
    stream.close()
    assert tokens_of(service.serve([ask(spec, PROMPT, 16)])[0]) == two


def test_an_instance_belongs_to_one_service(daemons: Daemons) -> None:
    first = daemons.worker("127.0.0.1:1", instance="shared-name")
    first.wait_ready()
    said = daemons.worker("127.0.0.1:2", instance="shared-name").wait_failed()
    assert "shared-name belongs to another running service" in said
    assert f"process {first.pid}" in said
    assert "Traceback" not in said
    first.stop()
