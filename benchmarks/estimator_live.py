"""Estimates against the steps of a live worker, each foretold before it is learned from."""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aegaeon import LLMService, Request
from aegaeon.model_spec import ModelSpec
from aegaeon_scheduler.config import DaemonConfig
from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.cluster import Cluster
from aegaeon_scheduler.service.server import SchedulerServer
from benchmarks.live_daemons import start_daemon, wait_for_workers, worker_flags
from benchmarks.service import NodeSizes

_START_S = 30.0


@dataclass(frozen=True)
class Foretold:
    """A step or a switch: what was expected, and what it took, in ns."""

    model: str
    #: "decode", "prefill", "mixed" or "switch".
    kind: str
    expected_ns: float
    measured_ns: int
    decode_sequences: int = 0
    context_tokens: int = 0
    prefill_tokens: int = 0

    @property
    def error(self) -> float:
        """Relative."""
        return abs(self.expected_ns / self.measured_ns - 1)


@dataclass
class Recorder:
    """Asks a scheduler's estimators what they expect of every step, just before they learn it."""

    cluster: Cluster
    found: list[Foretold] = field(default_factory=list)

    def see(self, event: events.Event) -> None:
        """Note an event that is about to be applied."""
        if not isinstance(event, events.StepDone | events.TurnStarted):
            return
        engine = self.cluster.state.engines.get(event.epoch)
        turn = engine.turn(event.turn_id) if engine else None
        if engine is None or turn is None:
            return
        if isinstance(event, events.TurnStarted):
            if event.switched:
                expected = engine.estimator.switch_ns(turn.model)
                self.found.append(Foretold(turn.model, "switch", expected, event.switch_time_ns))
            return
        batch, context, prompt = event.decode_sequences, event.context_tokens, event.prefill_tokens
        expected = engine.estimator.times(turn.model).expected_ns(
            batch, context, prompt, max(len(event.handles) - batch, 0)
        )
        kind = ("mixed" if batch else "prefill") if prompt else "decode"
        self.found.append(
            Foretold(turn.model, kind, expected, event.step_time_ns, batch, context, prompt)
        )


@contextmanager
def recording_scheduler(listen: str) -> Iterator[tuple[str, Recorder]]:
    """A scheduler on a thread of this process, and what it foretells; ends with the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[SchedulerServer, str]:
        # A lease for a machine that is busy with other things as well.
        server = SchedulerServer(DaemonConfig(listen=listen, lease_ttl_ns=60_000_000_000))
        return server, await server.start()

    server, address = asyncio.run_coroutine_threadsafe(start(), loop).result(_START_S)
    recorder, apply = Recorder(server.driver.cluster), server.driver.apply

    def apply_seen(event: events.Event) -> None:
        recorder.see(event)
        apply(event)

    server.driver.apply = apply_seen  # type: ignore[method-assign]
    try:
        yield address, recorder
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(_START_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_START_S)
        loop.close()


def record_live(
    models: Sequence[ModelSpec], sizes: NodeSizes, seconds: float, seed: int
) -> list[Foretold]:
    """Steps of one worker on one thread that serves a mixed load of all ``models``."""
    with ExitStack() as stack:
        # Short, because sockets lie in it.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="live")))
        address, recorder = stack.enter_context(recording_scheduler(f"unix:{folder}/s"))
        flags = worker_flags(f"unix:{folder}", address, 0, "simple", sizes)
        start_daemon(stack, "w0", folder, "aegaeon_worker", flags)
        service = stack.enter_context(LLMService(address=address))
        wait_for_workers(service, 1)
        for model in models:
            asyncio.run(service.deploy_model_replicas(model))
        service.replay(folder / "replay", _load(models, seconds, seed))
    return recorder.found


def _load(models: Sequence[ModelSpec], seconds: float, seed: int) -> list[Request]:
    """Poisson arrivals in bursts of 1 to 8: batches and prompts of many sizes."""
    draw, requests, now = random.Random(seed), list[Request](), 0.0
    while now < seconds:
        model = draw.choice(models)
        for _ in range(draw.choice((1, 1, 2, 4, 8))):
            requests.append(
                Request(
                    model=model,
                    arrival_time=now,
                    request_id=len(requests),
                    prompt_token_ids=draw.choices(range(5, 1_000), k=draw.randint(4, 400)),
                    decode_tokens=draw.randint(8, 96),
                    ignore_eos=True,
                )
            )
        now += draw.expovariate(0.3)
    return requests
