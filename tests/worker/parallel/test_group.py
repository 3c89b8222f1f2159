"""An engine of several ranks, each with its own device and threads, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aegaeon_worker.config import WorkerConfig
from aegaeon_worker.device.interface import Device
from aegaeon_worker.engine import events
from aegaeon_worker.engine.assembly import WorkerParts
from aegaeon_worker.engine.commands import UnloadModel
from aegaeon_worker.engine.execution import Execution
from aegaeon_worker.kv.imports import Imported
from aegaeon_worker.models.interface import DecodeRows, DecodeStep
from aegaeon_worker.models.native.model import NativeModel
from aegaeon_worker.parallel.communicator import Communicator
from aegaeon_worker.parallel.errors import GroupBroken
from aegaeon_worker.parallel.followers import Followers
from aegaeon_worker.sampling.parameters import SamplingParameters
from tests.worker.engine.harness import EngineHarness
from tests.worker.engine.pace import one_ahead, plain_decode_step
from tests.worker.engine.reference import assert_scored, reference_tokens
from tests.worker.models.tiny import make_checkpoint

NEW_TOKENS = 12
PROMPTS = [list(range(5, 5 + length)) for length in (1, 17, 60)]
FAMILIES = ("llama", "gemma3_text")
MIB = 1 << 20


class RankedHarness(EngineHarness):
    """Rank 0 of an engine; the other ranks run beside it."""

    def __init__(self, shm_dir: Path, size: int, **overrides: Any) -> None:
        super().__init__(shm_dir, tensor_parallel_size=size, rank_timeout_s=20.0, **overrides)
        self._others = ExitStack()

    def __enter__(self) -> RankedHarness:
        for rank in self.config.ranks.others:
            index = self.config.worker_index + rank
            config = replace(self.config, worker_index=index)
            self._others.enter_context(running(config, self.choose))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._others.close()


@contextmanager
def running(config: WorkerConfig, choose: Callable[[Device], Execution]) -> Iterator[WorkerParts]:
    parts = WorkerParts(config, choose=choose)
    try:
        parts.start()
        yield parts
    finally:
        parts.close()


def shared_decode_step(model: NativeModel) -> DecodeStep:
    """As on GPUs: all ranks have the tokens that are chosen in the step, and rank 0 the logits."""
    plain, together = plain_decode_step(model), model._collectives

    def step(rows: DecodeRows) -> None:
        if together.ranks.rank and rows.logits is not None:
            plain(replace(rows, logits=None))
            return
        plain(rows)
        if rows.logits is None and isinstance(together, Communicator):
            together.send_from_first(rows.tokens)

    return step


@pytest.fixture(params=["step by step", "one step ahead"])
def pace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How ranks run their steps: as CPUs do, or as GPUs do."""
    if request.param == "one step ahead":
        monkeypatch.setattr(EngineHarness, "choose", staticmethod(one_ahead))
        monkeypatch.setattr(NativeModel, "decode_step", property(shared_decode_step))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return {
        family: make_checkpoint(family, root / family, seed, intermediate_size=2048)
        for seed, family in enumerate(FAMILIES)
    }


@pytest.fixture(scope="module")
def expected(checkpoints: dict[str, Path]) -> dict[str, list[list[int]]]:
    return {
        family: reference_tokens(path, PROMPTS, NEW_TOKENS) for family, path in checkpoints.items()
    }


@pytest.fixture
def shm_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert list(tmp_path.glob("*aegaeon-*")) == [], "the ranks left files behind"


def test_four_ranks_share_two_kv_heads_across_switches_and_swaps(
    pace: None,
    shm_dir: Path,
    checkpoints: dict[str, Path],
    expected: dict[str, list[list[int]]],
) -> None:
    """The device holds one model; KV leaves it with every switch, and each head is on two ranks."""
    with RankedHarness(shm_dir, 4, device_memory_bytes=4 * MIB, cpu_slab_bytes=1 * MIB) as engine:
        for path in checkpoints.values():
            engine.load(path)
        members = {
            name: [engine.add(name, prompt, NEW_TOKENS) for prompt in PROMPTS]
            for name in checkpoints
        }
        engine.alternate(members, quota_ns=1)
        tokens = {name: [engine.tokens(h) for h in handles] for name, handles in members.items()}
        started = [event for event in engine.log if isinstance(event, events.TurnStarted)]
        ended = [event for event in engine.log if isinstance(event, events.TurnEnded)]
    assert tokens == expected
    assert sum(event.switched for event in started) > 4
    assert sum(event.kv_bytes for event in started) > 0
    assert sum(event.recomputed_sequences for event in ended) == 0


def test_files_of_all_ranks_are_packed_by_the_first_and_used_again(
    shm_dir: Path, checkpoints: dict[str, Path]
) -> None:
    with RankedHarness(shm_dir, 2) as engine:
        loaded = engine.load(checkpoints["llama"])
        files = sorted(shm_dir.glob("*/weights/*.weights"))
        assert (loaded.reused, len(files)) == (False, 2)
        packed = [file.stat().st_ino for file in files]
        engine.send(UnloadModel("llama"))
        engine.wait_for(events.ModelUnloaded)
        assert engine.load(checkpoints["llama"]).reused
        assert [f.stat().st_ino for f in sorted(shm_dir.glob("*/weights/*.weights"))] == packed
        assert engine.generate("llama", PROMPTS[:1], 4)


@pytest.mark.parametrize(("size", "arrives"), [(2, True), (1, False)])
def test_kv_goes_from_ranks_to_as_many_and_is_computed_again_elsewhere(
    shm_dir: Path,
    checkpoints: dict[str, Path],
    expected: dict[str, list[list[int]]],
    size: int,
    arrives: bool,
) -> None:
    """Whatever becomes of the KV, the tokens are the same."""
    with (
        RankedHarness(shm_dir, 2) as prefill,
        RankedHarness(shm_dir, size, worker_index=2) as decode,
    ):
        for engine in (prefill, decode):
            engine.load(checkpoints["llama"])
        handles = [prefill.add("llama", prompt, NEW_TOKENS) for prompt in PROMPTS]
        prefill.turn("llama", handles, hands_off=True)
        prefill.wait_ended(handles)
        going_on = []
        for handle, prompt, tokens in zip(handles, PROMPTS, expected["llama"], strict=True):
            output = prefill.outputs[handle]
            assert output.place is not None
            assert (output.place.num_tokens, output.tokens) == (len(prompt), tokens[:1])
            going_on.append(
                decode.add("llama", prompt, NEW_TOKENS, generated=tokens[:1], kv=output.place)
            )
        decode.turn("llama", going_on)
        decode.wait_ended(going_on)
        found = [
            tokens[:1] + decode.tokens(h)
            for h, tokens in zip(going_on, expected["llama"], strict=True)
        ]
        imported = [event.num_tokens for event in decode.log if isinstance(event, Imported)]
    assert found == expected["llama"]
    assert sorted(imported) == (sorted(map(len, PROMPTS)) if arrives else [0] * len(PROMPTS))


def test_ranks_go_on_from_tokens_that_the_first_has_drawn(
    pace: None, shm_dir: Path, checkpoints: dict[str, Path], expected: dict[str, list[list[int]]]
) -> None:
    """Drawn and greedy sequences in one batch, and greedy ones alone before and after."""
    drawn = SamplingParameters(temperature=0.9, seed=5)
    outputs = []
    for size in (1, 2):
        with RankedHarness(shm_dir, size) as engine:
            engine.load(checkpoints["llama"])
            greedy = [engine.add("llama", prompt, NEW_TOKENS) for prompt in PROMPTS]
            others = [engine.add("llama", prompt, 5, sampling=drawn) for prompt in PROMPTS]
            engine.turn("llama", [*others, *greedy])
            engine.wait_ended([*greedy, *others])
            assert [engine.tokens(handle) for handle in greedy] == expected["llama"]
            outputs.append([engine.tokens(handle) for handle in others])
    assert outputs[0] == outputs[1]


def test_a_group_that_breaks_in_the_middle_of_a_copy_leaves_nothing_behind(
    shm_dir: Path, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler is told, the ranks find together again, and serve as before."""
    sizes = {"device_memory_bytes": 6 * MIB, "cpu_slab_bytes": 1 * MIB}
    with RankedHarness(shm_dir, 2, **sizes) as engine:
        for path in checkpoints.values():
            engine.load(path)
        before = engine.generate("llama", PROMPTS, NEW_TOKENS)
        # What these prompts leave goes to the host, and is found there by those that begin alike.
        engine.generate("gemma3_text", [[5]], 4)
        with monkeypatch.context() as patch:
            patch.setattr(Followers, "wait", lose_a_rank)
            engine.turn("llama", [engine.add("llama", PROMPTS[-1], 4)])
            lost = engine.wait_for(events.GroupLost)
        assert "lost in the middle" in str(lost.error)
        engine.attach()
        assert engine.parts._slabs.owned == frozenset()
        engine.load(checkpoints["llama"])
        assert engine.generate("llama", PROMPTS, NEW_TOKENS) == before


def lose_a_rank(*_: object) -> None:
    raise GroupBroken("lost in the middle")


@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_score_prompts_as_one_does(
    pace: None, shm_dir: Path, checkpoints: dict[str, Path], family: str
) -> None:
    path, prompts = checkpoints[family], [*PROMPTS, list(range(3, 503)) + list(range(90, 190))]
    with RankedHarness(shm_dir, 2) as engine:
        engine.load(path)
        scored = [engine.add(family, prompt, 4, prompt_logprobs=3) for prompt in prompts]
        plain = [engine.add(family, prompt, 4) for prompt in prompts]
        engine.turn(family, [*scored, *plain])
        engine.wait_ended([*scored, *plain])
        for one, other, prompt in zip(scored, plain, prompts, strict=True):
            assert_scored(engine.outputs[one].prompt, path, prompt, 3)
            assert engine.tokens(one) == engine.tokens(other)
