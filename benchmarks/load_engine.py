"""An engine of the scheduler's load test, which computes nothing.

It speaks the real contract. Its steps are sent as bytes that were serialised beforehand, except
for the tokens: every token of a step is the time at which the step was sent, so that a client on
the same machine can tell how long it took.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from aegaeon.v1 import inference_pb2, model_pb2, worker_pb2
from benchmarks.send_time import packed_tokens

#: Of the load test, and sequences of each one's batch.
ENGINES = 64
BATCH = 64
STEP_TIME_NS = 33_333_333
_GOES_ON = inference_pb2.FINISH_REASON_UNSPECIFIED
_LENGTH = inference_pb2.FINISH_REASON_LENGTH
_CANCELLED = inference_pb2.FINISH_REASON_CANCELLED
_COMPLETED = worker_pb2.TurnEnded.REASON_COMPLETED


class Pace:
    """How fast all engines step, and what became of it."""

    def __init__(self, vocabulary: int = 0) -> None:
        #: Ids that tokens are below; 0 lets them tell the time.
        self.vocabulary = vocabulary
        self.interval_s = 0.0
        #: Set when it changes.
        self.listeners: list[asyncio.Event] = []
        #: Sequences in turns.
        self.members = 0
        self.steps = 0
        self.tokens = 0
        #: Steps that were sent over half an interval late, because this process was held up.
        self.late = 0

    def set_rate(self, steps_per_s: float) -> None:
        """Steps per second of every engine; 0 stops them."""
        self.interval_s = 1.0 / steps_per_s if steps_per_s else 0.0
        for listener in self.listeners:
            listener.set()

    def figures(self) -> dict[str, float]:
        """Counts since the call before, and the process's processor time so far."""
        figures = {
            "members": self.members,
            "steps": self.steps,
            "tokens": self.tokens,
            "late": self.late,
            "cpu_s": time.process_time(),
        }
        self.steps = self.tokens = self.late = 0
        return figures


class StubEngine:
    """One engine: a model, one running turn, steps at the common pace."""

    def __init__(self, number: int, pace: Pace) -> None:
        self.number = number
        self.epoch = 0
        #: The scheduler has opened its stream.
        self.connected = asyncio.Event()
        self._pace = pace
        #: Unfinished sequences: how many tokens they still want when they begin.
        self._wanted: dict[int, int] = {}
        #: Members of the turn: the step after which they end.
        self._last_step: dict[int, int] = {}
        self._ends_at: dict[int, list[int]] = {}
        self._turns: deque[worker_pb2.QueueTurn] = deque()
        self._step = 0
        self._events: deque[bytes] = deque()
        self._wake = asyncio.Event()
        pace.listeners.append(self._wake)
        self._template = b""
        self._handles: list[int] = []

    async def serve(self, commands: AsyncIterator[worker_pb2.ExecuteRequest], context: Any) -> None:
        """One command and event stream."""
        await context.write(_event(ready=worker_pb2.Ready()))
        self.connected.set()
        reader = asyncio.create_task(self._take(commands))
        due = time.monotonic()
        try:
            while True:
                while self._events:
                    await context.write(self._events.popleft())
                if not self._handles or not self._pace.interval_s:
                    self._wake.clear()
                    await self._wake.wait()
                    # Engines step one after another, not all at the same moment.
                    due = time.monotonic() + self._pace.interval_s * self.number / ENGINES
                    continue
                interval = self._pace.interval_s
                due += interval
                late = time.monotonic() - due
                if late < 0:
                    await asyncio.sleep(-late)
                elif late > interval / 2:
                    self._pace.late += 1
                    due = max(due, time.monotonic() - interval)  # never catch up in a burst
                await context.write(self._next_step())
        finally:
            reader.cancel()

    def _next_step(self) -> bytes:
        self._step += 1
        ended = self._ends_at.pop(self._step, ())
        count = len(self._handles)
        self._pace.steps += 1
        self._pace.tokens += count
        if not ended:
            return self._bytes(self._template, count)
        body = self._fixed_part(set(ended))
        for handle in ended:
            self._last_step.pop(handle, None)
            self._wanted.pop(handle, None)
        self._members_changed()
        return self._bytes(body, count)

    def _bytes(self, fixed_part: bytes, count: int) -> bytes:
        vocabulary = self._pace.vocabulary
        tokens = packed_tokens(3, count, vocabulary) if vocabulary else packed_tokens(3, count)
        return _step_bytes(fixed_part + tokens)

    def _members_changed(self) -> None:
        self._pace.members -= len(self._handles)
        self._handles = list(self._last_step)
        self._pace.members += len(self._handles)
        self._template = self._fixed_part(set())
        if not self._handles and self._turns:
            turn = self._turns.popleft()
            ended = worker_pb2.TurnEnded(
                turn_id=turn.turn_id, reason=_COMPLETED, steps=1, elapsed_ns=1
            )
            self._events.append(_event(turn_ended=ended))
            self._start_turn()

    def _fixed_part(self, ended: set[int]) -> bytes:
        """A step without its tokens."""
        turn_id = self._turns[0].turn_id if self._turns else 0
        return worker_pb2.StepBatch(
            turn_id=turn_id,
            handles=self._handles,
            finish_reasons=[_LENGTH if h in ended else _GOES_ON for h in self._handles],
            step_time_ns=STEP_TIME_NS,
            decode_sequences=len(self._handles),
            context_tokens=1000 * len(self._handles),
        ).SerializeToString()

    def _start_turn(self) -> None:
        if not self._turns:
            return
        turn = self._turns[0]
        started = worker_pb2.TurnStarted(turn_id=turn.turn_id, switch_time_ns=1)
        self._events.append(_event(turn_started=started))
        self._join(turn.handles)

    def _join(self, handles: Any) -> None:
        for handle in handles:
            wanted = self._wanted.get(handle)
            if wanted is not None and handle not in self._last_step:
                last = self._last_step[handle] = self._step + wanted
                self._ends_at.setdefault(last, []).append(handle)
        self._members_changed()

    async def _take(self, commands: AsyncIterator[worker_pb2.ExecuteRequest]) -> None:
        async for command in commands:
            kind = command.WhichOneof("command") or ""
            handler = getattr(self, f"_on_{kind}", None)
            if handler is not None:
                handler(getattr(command, kind))
                self._wake.set()

    def _on_load_model(self, command: worker_pb2.LoadModel) -> None:
        loaded = worker_pb2.LoadedModel(spec=command.spec, facts=model_facts())
        self._events.append(_event(model_loaded=worker_pb2.ModelLoaded(model=loaded)))

    def _on_add_sequences(self, command: worker_pb2.AddSequences) -> None:
        for spec in command.sequences:
            self._wanted[spec.handle] = spec.stop.max_new_tokens

    def _on_cancel_sequences(self, command: worker_pb2.CancelSequences) -> None:
        known = [handle for handle in command.handles if self._wanted.pop(handle, None)]
        for handle in known:
            last = self._last_step.pop(handle, None)
            if last is not None:
                self._ends_at[last].remove(handle)
        ends = worker_pb2.StepBatch(
            handles=known, token_ids=[0] * len(known), finish_reasons=[_CANCELLED] * len(known)
        )
        self._events.append(_event(step=ends))
        self._members_changed()

    def _on_queue_turn(self, command: worker_pb2.QueueTurn) -> None:
        self._turns.append(command)
        if len(self._turns) == 1:
            self._start_turn()

    def _on_join_turn(self, command: worker_pb2.JoinTurn) -> None:
        if self._turns and self._turns[0].turn_id == command.turn_id:
            self._join(command.handles)

    def _on_leave_turn(self, command: worker_pb2.LeaveTurn) -> None:
        for handle in command.handles:
            last = self._last_step.pop(handle, None)
            if last is not None:
                self._ends_at[last].remove(handle)
                self._wanted[handle] = last - self._step
        self._members_changed()


def model_facts() -> model_pb2.ModelFacts:
    """Of every model; large limits, so that the load test decides."""
    return model_pb2.ModelFacts(
        fingerprint="stub",
        packed_bytes=1,
        kv_block_bytes=1,
        kv_block_tokens=16,
        vocab_size=1 << 21,
        max_model_len=1 << 20,
        eos_token_ids=[0],
    )


def _event(**fields: Any) -> bytes:
    return worker_pb2.ExecuteResponse(**fields).SerializeToString()


def _step_bytes(body: bytes) -> bytes:
    """A step event."""
    number, size = 7, len(body)
    varint = bytearray()
    while size > 0x7F:
        varint.append(size & 0x7F | 0x80)
        size >>= 7
    varint.append(size)
    return bytes([number << 3 | 2]) + varint + body
