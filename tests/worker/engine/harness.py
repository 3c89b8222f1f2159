"""Drives a real engine on its own thread, in process, the way a scheduler would."""

from __future__ import annotations

import itertools
import os
import queue
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from aegaeon_worker.config import WorkerConfig
from aegaeon_worker.engine import commands, events
from aegaeon_worker.engine.assembly import CarryKv, WorkerParts
from aegaeon_worker.engine.events import FinishReason
from aegaeon_worker.engine.execution import choose_execution
from aegaeon_worker.engine.model_spec import ModelSpec
from aegaeon_worker.kv.hand_offs import HandedOff
from aegaeon_worker.kv.place import KvPlace
from aegaeon_worker.sampling.log_probabilities import TokenLogProbabilities
from aegaeon_worker.sampling.parameters import SamplingParameters

E = TypeVar("E")
#: Where engines run unless a test says otherwise.
DEVICE = os.environ.get("AEGAEON_TEST_DEVICE", "cpu")
#: Other processes may take some of the memory that a share is computed from.
MARGIN = 64 << 10
_TIMEOUT_S = 100.0


@dataclass
class Output:
    """What became of one sequence."""

    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    error: Exception | None = None
    place: KvPlace | None = None
    """Where it was handed off."""
    log_probabilities: list[TokenLogProbabilities] = field(default_factory=list)
    """Of the tokens, where they were asked for."""
    told_from: int = 1
    """The first position in the prompt whose log-probability is to be told."""
    prompt: list[tuple[float, dict[int, float]]] = field(default_factory=list)
    """From there on: of the prompt's tokens, and of the most probable ones."""

    @property
    def ended(self) -> bool:
        return self.finish is not None or self.error is not None or self.place is not None


class EngineHarness:
    """A worker without gRPC: submit commands, collect events, run whole workloads."""

    #: How steps run on the device.
    choose = staticmethod(choose_execution)

    def __init__(self, shm_dir: Path, carry: CarryKv | None = None, **overrides: Any) -> None:
        self._carry = carry
        options: dict[str, Any] = {
            "scheduler": "unix:unused",
            "listen": "unix:unused",
            "node_id": "node_0",
            "worker_index": 0,
            "instance": "test",
            "shm_dir": shm_dir,
            "cpu_num_slabs": 4,
            "cpu_slab_bytes": 64 << 20,
            "model_cache_bytes": 2 << 30,
            "device": "cpu",
            "device_memory_bytes": 1 << 30,
            "device_chunk_bytes": 2 << 20,
        }
        options |= overrides
        if DEVICE != "cpu" and options["device"] == "cpu":
            nbytes = options["device_memory_bytes"]
            share = (nbytes + MARGIN) / torch.cuda.mem_get_info(DEVICE)[0]
            options |= {"device": DEVICE, "memory_utilization": share}
        self.config = WorkerConfig(**options)
        self._inbox: queue.SimpleQueue[events.Event] = queue.SimpleQueue()
        self.log: list[events.Event] = []
        self.outputs: dict[int, Output] = {}
        self._handles = itertools.count(1)
        self._turns = itertools.count(1)

    def __enter__(self) -> Self:
        self.parts = WorkerParts(self.config, self._carry, self.choose)
        self.parts.start()
        self.attach()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.parts.close()

    def attach(self) -> None:
        """Open a command stream."""
        self.send(commands.Attach(self._inbox.put))
        self.wait_for(events.Ready)

    def send(self, command: commands.Command) -> None:
        self.parts.thread.submit(command)

    def next_event(self) -> events.Event:
        """The next event, with outputs brought up to date."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                event = self._inbox.get(timeout=0.5)
                break
            except queue.Empty:
                assert self.parts.thread.failure is None, self.parts.thread.failure
                assert time.monotonic() < deadline, f"no event in {_TIMEOUT_S} s: {self.log[-3:]}"
        self.log.append(event)
        match event:
            case events.StepBatch():
                self._take_step(event)
            case events.SequenceFailed(handle, error):
                output = self.outputs[handle]
                assert not output.ended, f"sequence {handle} ended twice"
                output.error = error
            case HandedOff(handle, place):
                output = self.outputs[handle]
                assert not output.ended, f"sequence {handle} ended twice"
                output.place = place
        return event

    def wait_for(self, kind: type[E]) -> E:
        """The next event of ``kind``; those before it are logged."""
        while True:
            event = self.next_event()
            if isinstance(event, kind):
                return event

    def load(self, path: Path, name: str | None = None, **options: Any) -> events.ModelLoaded:
        """Load a model; raises what the engine reports."""
        options = {"dtype": torch.float32} | options
        spec = ModelSpec(name or path.name, path, **options)
        self.send(commands.LoadModel(spec))
        while True:
            event = self.next_event()
            if isinstance(event, events.ModelLoaded) and event.model.spec.name == spec.name:
                return event
            if isinstance(event, events.ModelFailed) and event.model == spec.name:
                raise event.error

    def add(
        self,
        model: str,
        prompt: Sequence[int],
        max_new_tokens: int = 64,
        *,
        generated: Sequence[int] = (),
        min_new_tokens: int = 0,
        stop_ids: Iterable[int] = (),
        max_model_len: int = 1 << 20,
        kv: KvPlace | None = None,
        sampling: SamplingParameters | None = None,
        prefix_caching: bool = True,
        cache_salt: str = "",
        prompt_logprobs: int | None = None,
        told: int = 0,
    ) -> int:
        """Make a sequence known; returns its handle."""
        handle = next(self._handles)
        self.outputs[handle] = Output(told_from=max(1, told))
        stop = commands.StopConditions(
            max_new_tokens, min_new_tokens, frozenset(stop_ids), max_model_len
        )
        spec = commands.SequenceSpec(
            handle,
            model,
            list(prompt),
            list(generated),
            stop,
            kv,
            sampling,
            prefix_caching,
            cache_salt,
            f"label-{handle}",
            prompt_logprobs=prompt_logprobs,
            told_prompt_tokens=told,
        )
        self.send(commands.AddSequences([spec]))
        return handle

    def turn(
        self,
        model: str,
        handles: Sequence[int],
        quota_ns: int = 0,
        prefetch_model: str | None = None,
        *,
        hands_off: bool = False,
    ) -> int:
        """Queue a turn; returns its id."""
        turn_id = next(self._turns)
        members = list(handles)
        self.send(commands.QueueTurn(turn_id, model, members, quota_ns, prefetch_model, hands_off))
        return turn_id

    def wait_ended(self, handles: Iterable[int]) -> None:
        """Collect events until all of the sequences have ended."""
        while not all(self.outputs[handle].ended for handle in handles):
            self.next_event()

    def tokens(self, handle: int) -> list[int]:
        """A finished sequence's tokens; raises its error."""
        output = self.outputs[handle]
        if output.error is not None:
            raise output.error
        return output.tokens

    def generate(
        self, model: str, prompts: Sequence[Sequence[int]], max_new_tokens: int = 64
    ) -> list[list[int]]:
        """All prompts in one turn."""
        handles = [self.add(model, prompt, max_new_tokens) for prompt in prompts]
        self.turn(model, handles)
        self.wait_ended(handles)
        return [self.tokens(handle) for handle in handles]

    def alternate(
        self, members: dict[str, list[int]], quota_ns: int, quotas: Iterable[int] | None = None
    ) -> int:
        """Give the models turns of ``quota_ns`` one after another until all sequences ended.

        The next turn is always queued while one runs. Returns the number of turns.
        """
        everyone = [handle for handles in members.values() for handle in handles]
        rotation = itertools.cycle(members)
        queued: list[int] = []
        count = 0
        lengths = itertools.cycle(quotas or [quota_ns])
        while not all(self.outputs[handle].ended for handle in everyone):
            while len(queued) < 2:
                model = next(rotation)
                if all(self.outputs[handle].ended for handle in members[model]):
                    continue
                queued.append(self.turn(model, members[model], next(lengths)))
                count += 1
            ended = self.wait_for(events.TurnEnded)
            if ended.turn_id in queued:  # or the end of a turn from before
                queued.remove(ended.turn_id)
        for turn_id in queued:
            while self.wait_for(events.TurnEnded).turn_id != turn_id:
                pass
        return count

    def _take_step(self, step: events.StepBatch) -> None:
        for piece in step.prompt_scores:
            self._take_scores(piece)
        for index, told in step.log_probabilities.items():
            self.outputs[step.handles[index]].log_probabilities.append(told)
        rows = zip(step.handles, step.token_ids, step.finish_reasons, strict=True)
        for handle, token, reason in rows:
            output = self.outputs[handle]
            assert not output.ended, f"sequence {handle} got a token after its end"
            if reason is not FinishReason.CANCELLED:
                output.tokens.append(token)
            if reason is not FinishReason.NONE:
                output.finish = reason

    def _take_scores(self, piece: events.PromptScores) -> None:
        output, told = self.outputs[piece.handle], piece.told
        assert not output.ended, f"sequence {piece.handle} was scored after its end"
        assert not output.tokens, f"sequence {piece.handle} was scored after its first token"
        assert piece.start == output.told_from + len(output.prompt), "a token twice, or never"
        assert told.logprobs, "nothing is told"
        top = zip(told.top_token_ids, told.top_logprobs, strict=True)
        output.prompt += [
            (value, dict(itertools.islice(top, told.top_count))) for value in told.logprobs
        ]
        assert not list(top)
