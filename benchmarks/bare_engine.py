"""The bare engine in a process of its own, as a worker has one."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.in_process import InProcessEngine
from benchmarks.service import NodeSizes
from benchmarks.workload import Run

_TIMEOUT_S = 180.0


class BareEngine:
    """Prompts in, tokens out over one pipe per call: what is left of a worker without its gRPC.

    Not in the benchmark's own process: there the peers have filled OpenMP with threads, which stops
    its spinning at barriers and slows every step of an engine beside them.
    """

    name = "engine alone"

    def __init__(self, model_path: Path, sizes: NodeSizes, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, model_path, sizes, threads), daemon=True
        )
        self._process.start()
        theirs.close()

    def generate(self, prompts: list[list[int]], new_tokens: int) -> Run:
        """One turn with all prompts, timed beside the engine."""
        self._pipe.send((prompts, new_tokens))
        if not self._pipe.poll(_TIMEOUT_S):
            raise TimeoutError(f"{self.name} did not answer within {_TIMEOUT_S:.0f} s")
        run: Run = self._pipe.recv()
        return run

    def close(self) -> None:
        """End the process, which gives everything back first."""
        self._pipe.close()
        self._process.join(_TIMEOUT_S)


def _serve(pipe: Connection, model_path: Path, sizes: NodeSizes, threads: int) -> None:
    engine = InProcessEngine(model_path, sizes, threads)
    try:
        while True:
            pipe.send(engine.generate(*pipe.recv()))
    except EOFError:
        pass
    finally:
        engine.close()
