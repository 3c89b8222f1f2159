"""A worker's memory in a process of its own, which lends or borrows KV as it is told.

Lines of stdin: ``offer SEQUENCE MODEL TOKENS`` answers with the place, ``pull SEQUENCE MODEL TOKENS
BLOCK_NBYTES OFFER`` with what came, ``release SEQUENCE`` with how many sequences are left.
"""

from __future__ import annotations

import contextlib
import json
import queue
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aegaeon_worker.kv.fetches import Fetched
from aegaeon_worker.kv.place import KvPlace
from tests.worker.kv.memory_harness import ODD_SHAPE, SHAPE, Harness

SHAPES = {"a": SHAPE, "b": ODD_SHAPE}
_ANSWER_S = 120.0


class OtherWorker:
    """The process, from the side of the test."""

    def __init__(self, kind: str, folder: Path, index: int) -> None:
        command = [sys.executable, "-m", __name__, kind, str(folder), str(index)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.process.kill()
        self.process.communicate(timeout=_ANSWER_S)
        assert kind is not None or self.process.returncode in (0, -9)

    def say(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())

    def answer(self) -> Any:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], _ANSWER_S)
        assert readable, "the other worker does not answer"
        return json.loads(self.process.stdout.readline())

    def ask(self, *words: object) -> Any:
        self.say(*words)
        return self.answer()

    def offer(self, sequence: int, model: str, tokens: int) -> KvPlace:
        tokens, nbytes, offer = self.ask("offer", sequence, model, tokens)
        return KvPlace(tokens, nbytes, (), offer=offer)

    def say_pull(self, sequence: int, model: str, place: KvPlace) -> None:
        self.say("pull", sequence, model, place.num_tokens, place.block_nbytes, place.offer)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=_ANSWER_S)


def offer_on_device(worker: Harness, sequence: int, model: str, tokens: int) -> KvPlace:
    """Write a sequence and hand it off on the device."""
    worker.start(sequence, model, tokens)
    if worker.device.torch_device.type == "cuda":
        import torch

        torch.cuda.synchronize(worker.device.torch_device)
    worker.memory.hand_off([sequence], on_device=True)
    [done] = worker.memory.hand_offs.finish(wait=False)
    assert (done.sequence, done.place.runs) == (sequence, ())
    assert done.place.offer
    return done.place


def fetched(worker: Harness, timeout_s: float = 20.0) -> Fetched:
    """Wait for the end of the one pull that is under way."""
    while True:
        worker.memory.pulls.advance(wait=True)
        if outcomes := worker.memory.pulls.take_outcomes():
            [outcome] = outcomes
            return outcome
        worker.hear(timeout_s)


def go_on(worker: Harness, sequence: int, model: str) -> int:
    """Run a sequence's first turn, and check its KV; of how many tokens it has been told."""
    room = worker.memory.stored_tokens(sequence) + 20
    assert worker.memory.activate(model, [(sequence, room)]) == [sequence]
    [imported] = worker.memory.take_imports()
    assert imported.sequence == sequence
    assert imported.num_tokens == worker.memory.stored_tokens(sequence)
    worker.check_kv(sequence, model)
    return imported.num_tokens


def _main() -> None:
    kind, folder, index = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    worker = Harness(SHAPES, num_chunks=12, kind=kind, slab_dir=folder, peers=(index, True))
    _tell("ready")
    buffer = b""
    while True:
        readable, _, _ = select.select([sys.stdin.buffer], [], [], 0.01)
        with contextlib.suppress(queue.Empty):
            worker.hear(0.001)
        worker.memory.hand_offs.finish(wait=True)
        if not readable:
            continue
        piece = sys.stdin.buffer.raw.read(4096)  # type: ignore[attr-defined]
        if not piece:
            break
        *lines, buffer = (buffer + piece).split(b"\n")
        for line in lines:
            _tell(_obey(worker, line.decode().split()))
    worker.memory.audit()
    worker.close()


def _obey(worker: Harness, words: list[str]) -> object:
    match words:
        case ["offer", sequence, model, tokens]:
            place = offer_on_device(worker, int(sequence), model, int(tokens))
            return [place.num_tokens, place.block_nbytes, place.offer]
        case ["pull", sequence, model, tokens, nbytes, offer]:
            place = KvPlace(int(tokens), int(nbytes), (), offer=offer)
            worker.memory.add_sequence(int(sequence), model, place)
            outcome = fetched(worker)
            return [go_on(worker, int(sequence), model), outcome.num_tokens, outcome.refusal]
        case ["release", sequence]:
            worker.memory.hand_offs.release([int(sequence)])
            return worker.memory.num_sequences
    raise ValueError(f"unknown: {words}")


def _tell(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    _main()
