"""The engine on a real GPU; skipped where there is none."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from aegaeon_worker.device.calibration import measure_speed
from aegaeon_worker.engine import events
from aegaeon_worker.engine.cuda_execution import CudaWatch
from aegaeon_worker.engine.execution import Execution
from aegaeon_worker.engine.prefill_pace import StepLimits
from aegaeon_worker.sampling.parameters import SamplingParameters
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.reference import reference_tokens
from tests.worker.models.tiny import VOCAB_SIZE, make_checkpoint

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

NEW_TOKENS = 24
MIB = 1 << 20
GPU = {"device": "cuda:0", "memory_utilization": 0.005, "device_chunk_bytes": 2 * MIB}
FAMILIES = ("llama", "gemma2", "qwen3")


def test_float32_tokens_are_those_of_transformers_across_switches(tmp_path: Path) -> None:
    rng = random.Random(3)
    prompts = [[rng.randrange(3, VOCAB_SIZE) for _ in range(n)] for n in (1, 17, 90, 200)]
    paths = {
        family: make_checkpoint(family, tmp_path / family, seed)
        for seed, family in enumerate(FAMILIES)
    }
    # Six chunks, so that not all of the models' weights and KV fit together.
    share = 13 * MIB / torch.cuda.mem_get_info()[0]
    options = {"device": "cuda:0", "memory_utilization": share, "device_chunk_bytes": 2 * MIB}
    with EngineHarness(tmp_path, **options) as engine:
        for path in paths.values():
            engine.load(path, dtype=torch.float32)
        members = {name: [engine.add(name, p, NEW_TOKENS) for p in prompts] for name in paths}
        engine.alternate(members, quota_ns=1_000_000)
        outputs = {name: [engine.tokens(h) for h in handles] for name, handles in members.items()}
    for name, path in paths.items():
        assert outputs[name] == reference_tokens(path, prompts, NEW_TOKENS), name


def make_prompts(seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, VOCAB_SIZE) for _ in range(n)] for n in (1, 17, 90, 200, 33)]


@pytest.mark.parametrize(
    "sampling",
    [
        None,
        SamplingParameters(temperature=0.8, top_k=40, seed=1),
        SamplingParameters(temperature=1.2, top_p=0.8, min_p=0.01, seed=2, logprobs=3),
        SamplingParameters(temperature=1.0, logit_bias=((7, 3.0),), seed=3),
        SamplingParameters(temperature=0.9, top_p=0.7, repetition_penalty=1.2, seed=4),
    ],
)
def test_steps_go_on_without_the_host_waiting_for_the_device(
    tmp_path: Path, sampling: SamplingParameters | None
) -> None:
    path = make_checkpoint("qwen3", tmp_path / "qwen3", 1)
    with EngineHarness(tmp_path, **GPU) as engine:
        engine.load(path)

        def run() -> list[list[int]]:
            handles = [
                engine.add(
                    "qwen3", p, NEW_TOKENS, min_new_tokens=8, stop_ids=[5], sampling=sampling
                )
                for p in make_prompts(3)
            ]
            engine.turn("qwen3", handles)
            engine.wait_ended(handles)
            engine.wait_for(events.TurnEnded)
            return [engine.tokens(handle) for handle in handles]

        first, second = run(), run()  # kernels are loaded, steps are recorded
        torch.cuda.set_sync_debug_mode("error")
        try:
            assert run() == second == first
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_sampled_tokens_are_those_of_single_steps_launched_kernel_by_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_checkpoint("qwen3", tmp_path / "qwen3", 1)
    kinds = [
        SamplingParameters(temperature=1.0, seed=1),
        SamplingParameters(temperature=0.8, top_k=40, seed=2),
        SamplingParameters(temperature=1.5, top_p=0.9, seed=3),
        SamplingParameters(temperature=1.2, min_p=0.02, repetition_penalty=1.2, seed=4),
        SamplingParameters(presence_penalty=0.5, logprobs=2, seed=5),
    ]
    outputs = []
    plain = Execution(0, StepLimits(), CudaWatch, None)
    for choose in (EngineHarness.choose, lambda device: plain):
        monkeypatch.setattr(EngineHarness, "choose", staticmethod(choose))
        with EngineHarness(tmp_path, **GPU) as engine:
            engine.load(path, dtype=torch.float32)
            handles = [
                engine.add("qwen3", prompt, NEW_TOKENS, sampling=kind)
                for prompt, kind in zip(make_prompts(4), kinds, strict=True)
            ]
            engine.turn("qwen3", handles)
            engine.wait_ended(handles)
            outputs.append([engine.tokens(handle) for handle in handles])
    assert outputs[0] == outputs[1]


def test_handed_off_kv_goes_on_where_it_was_left(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path / "llama", 1)
    prompts = make_prompts(5)
    with EngineHarness(tmp_path, **GPU) as engine:
        engine.load(path, dtype=torch.float32)
        handles = [engine.add("llama", prompt, NEW_TOKENS) for prompt in prompts]
        engine.turn("llama", handles, hands_off=True)
        engine.wait_ended(handles)
        going_on = []
        for handle, prompt in zip(handles, prompts, strict=True):
            output = engine.outputs[handle]
            assert output.place is not None
            assert output.place.num_tokens == len(prompt)
            going_on.append(
                engine.add("llama", prompt, NEW_TOKENS, generated=output.tokens, kv=output.place)
            )
        engine.turn("llama", going_on)
        engine.wait_ended(going_on)
        tokens = [
            engine.outputs[before].tokens + engine.tokens(after)
            for before, after in zip(handles, going_on, strict=True)
        ]
    assert tokens == reference_tokens(path, prompts, NEW_TOKENS)


def test_a_switch_tells_how_long_its_copies_took(tmp_path: Path) -> None:
    large = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6}
    paths = [make_checkpoint("llama", tmp_path / name, 1, **large) for name in "ab"]
    # Room for one of them.
    share = 450 * MIB / torch.cuda.mem_get_info()[0]
    with EngineHarness(tmp_path, **(GPU | {"memory_utilization": share})) as engine:
        for path in paths:
            engine.load(path, dtype=torch.float32)
        members = {name: [engine.add(name, p, 12) for p in make_prompts(6)] for name in "ab"}
        engine.alternate(members, quota_ns=1_000_000)
    started = [event for event in engine.log if isinstance(event, events.TurnStarted)]
    switches = [event for event in started if event.switched]
    assert len(switches) > 2
    for event in switches:
        # No link is as fast.
        assert event.weight_bytes / event.weight_copy_ns < 200
        assert event.switch_time_ns >= event.weight_copy_ns


def test_calibration_tells_speeds_of_a_gpu() -> None:
    speed = measure_speed(torch.device("cuda"), torch.bfloat16)
    assert 2e11 < speed.memory_bytes_per_s < 2e13
    assert 2e9 < speed.host_link_bytes_per_s < 5e11
    assert 1e13 < speed.flops_per_s < 1e16
