"""Streams on a steady device, and what its steps and the host's threads made of them."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.steady_device import DeviceStep, expected_tokens
from benchmarks.step_stack import VOCAB_SIZE, Side
from benchmarks.thread_times import ThreadTime, spent, thread_times

#: Share of a run's time, at its beginning and its end, in which processor time is not looked at.
_MARGIN = 0.3
_PROMPT_TOKENS, _LONG_PROMPT = 40, 4000


@dataclass(frozen=True)
class Case:
    """Streams of some models, all at once."""

    step_ms: float
    models: int
    streams: int
    """Of each model."""
    arrivals: float = 0.0
    """Further requests per second, with long prompts and short answers."""
    deploys: bool = False
    """One model of 36 layers after another is deployed meanwhile."""

    def prompts(self) -> dict[str, list[list[int]]]:
        """By model; all of them differ."""
        tokens = VOCAB_SIZE - 3
        return {
            f"m{model}": [
                [3 + (model * 131 + stream * 17 + n) % tokens for n in range(_PROMPT_TOKENS)]
                for stream in range(self.streams)
            ]
            for model in range(self.models)
        }


@dataclass
class Measured:
    """What became of a case on one side."""

    side: str
    case: Case
    window: tuple[int, int]
    """When processor time was looked at, by the monotonic clock in ns."""
    spent: dict[str, dict[int, ThreadTime]]
    """By process and thread."""
    steps: list[DeviceStep]
    """In which all streams of a model decode, in a row."""
    engine_thread: int = 0
    seen: int = 0
    """Steps in the window."""

    @property
    def idle(self) -> float:
        """Share of the time that the device had nothing to do."""
        busy = sum(step.ended_ns - step.began_ns for step in self.steps)
        return 1 - busy / (self.steps[-1].ended_ns - self.steps[0].began_ns)

    @property
    def gaps_ms(self) -> list[float]:
        """Between steps, ascending."""
        return sorted((b.began_ns - a.ended_ns) / 1e6 for a, b in pairwise(self.steps))

    @property
    def change_ms(self) -> float:
        """Median gap where another model's turn begins; 0 without any."""
        return statistics.median(
            [(b.began_ns - a.ended_ns) / 1e6 for a, b in pairwise(self.steps) if a.model != b.model]
            or [0.0]
        )

    @property
    def steps_per_turn(self) -> float:
        """Of several models."""
        return len(self.steps) / (1 + sum(a.model != b.model for a, b in pairwise(self.steps)))

    def step_us(self, process: str, *, engine: bool | None = None) -> float:
        """Processor time per step: of the whole process, its engine's thread or all others."""
        return self._per_step(process, engine, lambda used: used.running_ns)

    def waited_us(self, process: str, *, engine: bool | None = None) -> float:
        """As `step_us`: time in which others had the cores."""
        return self._per_step(process, engine, lambda used: used.waiting_ns)

    def _per_step(
        self, process: str, engine: bool | None, of: Callable[[ThreadTime], int]
    ) -> float:
        found = [
            of(used)
            for thread, used in self.spent.get(process, {}).items()
            if engine is None or engine == (thread == self.engine_thread)
        ]
        return sum(found) / max(self.seen, 1) / 1e3


def run_cases(side: Side, cases: list[Case], seconds: float) -> list[Measured]:
    """Run cases on a side, and close it."""
    found, spans = [], []
    for case in cases:
        prompts = case.prompts()
        # Whatever happens once for a model and a size happens now.
        side.generate(prompts, 6)
        count = max(50, int(seconds * 1e3 / case.step_ms / case.models))
        sampler = _Sampler(side, count * case.models * case.step_ms / 1e3)
        began_ns = time.monotonic_ns()
        with arriving(side, case.arrivals), deploying(side, case.deploys):
            tokens = side.generate(prompts, count)
        spans.append((began_ns, time.monotonic_ns()))
        wanted = [expected_tokens(p, count, VOCAB_SIZE) for own in prompts.values() for p in own]
        if tokens != wanted:
            raise AssertionError(f"{side.name}: tokens differ from those of the device")
        found.append(Measured(side.name, case, *sampler.result(), []))
    thread, steps = side.close()
    for measured, (began_ns, ended_ns) in zip(found, spans, strict=True):
        measured.engine_thread = thread
        within = [s for s in steps if began_ns <= s.began_ns and s.ended_ns <= ended_ns]
        low, high = measured.window
        seen = [step for step in within if low <= step.began_ns < high]
        measured.seen = len(seen)
        case = measured.case
        measured.steps = seen if case.arrivals else all_decoding(within, case.streams)
    return found


def all_decoding(steps: list[DeviceStep], streams: int) -> list[DeviceStep]:
    """Steps in which all streams of a model decode: those behind the last with parts of prompts."""
    begin = max((n for n, step in enumerate(steps) if not step.decoding), default=-1) + 1
    full = [n for n, step in enumerate(steps) if n >= begin and step.decoding == streams]
    return steps[full[0] : full[-1] + 1]


@contextmanager
def arriving(side: Side, per_s: float) -> Iterator[None]:
    """Requests with prompts that nobody had before come in meanwhile."""
    if not per_s:
        yield
        return
    over, draw = threading.Event(), random.Random(0)

    def one() -> None:
        prompt = [draw.randrange(3, VOCAB_SIZE) for _ in range(_LONG_PROMPT)]
        side.generate({"m0": [prompt]}, 2)

    def run() -> None:
        with ThreadPoolExecutor(16) as pool:
            futures = [pool.submit(one)]
            while not over.wait(draw.expovariate(per_s)):
                futures.append(pool.submit(one))
            for future in futures:
                future.result()

    feeder = threading.Thread(target=run)
    feeder.start()
    try:
        yield
    finally:
        over.set()
        feeder.join()


@contextmanager
def deploying(side: Side, wanted: bool) -> Iterator[None]:
    """Models are deployed meanwhile, with a pause after each."""
    over = threading.Event()

    def run() -> None:
        while wanted and not over.wait(0.3):
            side.deploy()

    deployer = threading.Thread(target=run)
    deployer.start()
    try:
        yield
    finally:
        over.set()
        deployer.join()


class _Sampler:
    """Looks at the threads of a side twice while it runs."""

    def __init__(self, side: Side, seconds: float) -> None:
        self._side = side
        self._seconds = seconds
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def result(self) -> tuple[tuple[int, int], dict[str, dict[int, ThreadTime]]]:
        """When, and what was used by process and thread."""
        self._thread.join()
        return self._window, self._spent

    def _run(self) -> None:
        time.sleep(self._seconds * _MARGIN)
        before, began_ns = self._look(), time.monotonic_ns()
        time.sleep(self._seconds * (1 - 2 * _MARGIN))
        after, ended_ns = self._look(), time.monotonic_ns()
        self._window = began_ns, ended_ns
        self._spent = {name: spent(before[name], after[name]) for name in before}

    def _look(self) -> dict[str, dict[int, ThreadTime]]:
        return {name: thread_times(pid) for name, pid in self._side.processes.items()}
