"""KV that goes from the device of one process to that of another.

On GPUs by ``-k cuda``: two processes on one GPU, and on two where there are two.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from aegaeon_worker.kv.shape import BLOCK_TOKENS
from aegaeon_worker.peers import lender
from aegaeon_worker.peers.lender import LenderGone
from tests.worker.kv.memory_harness import Harness
from tests.worker.kv.other_worker import SHAPES, OtherWorker, fetched, go_on, offer_on_device

TOKENS = 3 * BLOCK_TOKENS + 5


def _with_gpus(count: int) -> pytest.MarkDecorator:
    have = torch.cuda.device_count()
    return pytest.mark.skipif(have < count, reason=f"{have} CUDA devices, not {count}")


@dataclass
class Node:
    """A folder that workers share; the test is one of them."""

    folder: Path
    here: str
    there: str
    stack: ExitStack

    def own(self) -> Harness:
        """The worker of this process."""
        made = Harness(SHAPES, num_chunks=8, kind=self.here, slab_dir=self.folder, peers=(0, True))
        self.stack.callback(made.close)
        self.stack.callback(made.memory.audit)
        return made

    def other(self) -> OtherWorker:
        """A worker in another process."""
        return self.stack.enter_context(OtherWorker(self.there, self.folder, 1))


@pytest.fixture(
    params=[
        pytest.param(("cpu", "cpu"), id="cpu"),
        pytest.param(("cuda:0", "cuda:0"), id="cuda on one", marks=_with_gpus(1)),
        pytest.param(("cuda:1", "cuda:0"), id="cuda on two", marks=_with_gpus(2)),
    ]
)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    here, there = request.param
    if here != "cpu":
        torch.cuda.set_device(here)
        torch.zeros(1, device=here)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (a count, not the entries)
    with ExitStack() as stack:
        yield Node(tmp_path, here, there, stack)
    assert here != "cpu" or len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    left = list(tmp_path.glob("device-*"))
    assert len(left) <= 1, "only a process that was killed leaves its folder"
    for folder in left:  # as the next worker of its index does
        shutil.rmtree(folder)


def test_every_byte_comes_from_the_other_process(node: Node) -> None:
    own, other = node.own(), node.other()
    for sequence, model in ((1, "b"), (2, "a"), (3, "b")):
        own.memory.add_sequence(sequence, model, other.offer(sequence, model, TOKENS))
        outcome = fetched(own)
        assert (outcome.num_tokens, outcome.refusal) == (TOKENS, "")
        assert go_on(own, sequence, model) == TOKENS
        assert other.ask("release", sequence) == 0
        own.memory.free(sequence)
    assert own.slabs.owned == frozenset()


def test_the_other_process_reads_every_byte_here(node: Node) -> None:
    own, other = node.own(), node.other()
    for sequence in (1, 2):
        place = offer_on_device(own, sequence, "b", TOKENS)
        other.say_pull(sequence, "b", place)
        assert other.answer() == [TOKENS, TOKENS, ""]
        own.memory.hand_offs.release([sequence])
    assert own.memory.num_sequences == 0


def test_what_came_outlives_the_process_that_lent_it(node: Node) -> None:
    own, other = node.own(), node.other()
    first, second = other.offer(1, "a", TOKENS), other.offer(2, "a", TOKENS)
    own.memory.add_sequence(1, "a", first)
    assert fetched(own).num_tokens == TOKENS
    other.kill()
    while not isinstance(own.hear(), LenderGone):
        pass
    own.memory.add_sequence(2, "a", second)
    outcome = fetched(own)
    assert (outcome.num_tokens, bool(outcome.refusal)) == (0, True)
    assert go_on(own, 1, "a") == TOKENS
    assert go_on(own, 2, "a") == 0


@pytest.mark.parametrize("mapped", [False, True])
def test_a_lender_killed_at_any_moment_leaves_all_or_nothing(node: Node, mapped: bool) -> None:
    own, other = node.own(), node.other()
    if mapped:
        own.memory.add_sequence(9, "a", other.offer(9, "a", TOKENS))
        assert fetched(own).num_tokens == TOKENS
    own.memory.add_sequence(1, "a", other.offer(1, "a", TOKENS))
    other.kill()
    outcome = fetched(own)
    assert outcome.num_tokens in (0, TOKENS)
    assert go_on(own, 1, "a") == outcome.num_tokens


def test_a_reader_killed_at_any_moment_leaves_the_lender_as_it_was(node: Node) -> None:
    own, other = node.own(), node.other()
    places = [offer_on_device(own, sequence, "b", TOKENS) for sequence in (1, 2)]
    other.say_pull(1, "b", places[0])
    other.kill()
    with OtherWorker(node.there, node.folder, 2) as another:
        for sequence, place in enumerate(places, 1):
            another.say_pull(sequence, "b", place)
            assert another.answer() == [TOKENS, TOKENS, ""]
    own.memory.hand_offs.release([1, 2])
    assert own.memory.num_sequences == 0
    assert own.memory.device_usage().kv == 0


def test_a_lender_that_hangs_is_given_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lender, "_ANSWER_S", 0.2)
    own, other = node.own(), node.other()
    place = other.offer(1, "a", TOKENS)
    os.kill(other.process.pid, signal.SIGSTOP)
    try:
        own.memory.add_sequence(1, "a", place)
        outcome = fetched(own)
        assert outcome.num_tokens == 0
        assert "has not answered" in outcome.refusal
    finally:
        os.kill(other.process.pid, signal.SIGCONT)
    assert go_on(own, 1, "a") == 0


def test_without_room_here_the_other_process_brings_it_to_the_slabs(node: Node) -> None:
    own, other = node.own(), node.other()
    own.start(9, "a", 6 * 4 * BLOCK_TOKENS)
    own.memory.add_sequence(1, "a", other.offer(1, "a", TOKENS))
    outcome = fetched(own)
    assert (outcome.num_tokens, outcome.refusal) == (0, "no room on the device")
    own.memory.free(9)
    assert go_on(own, 1, "a") == TOKENS
