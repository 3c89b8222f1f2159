"""Decode steps of answers that keep to a JSON schema, and of free ones, on CPUs.

One engine, without its process, serves the same prompts greedily, free and constrained by turns.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aegaeon.constraint import Constraint
from aegaeon.demo_model import fetch_demo_model
from aegaeon.utils import get_tokenizer
from aegaeon_worker.engine.events import StepBatch
from aegaeon_worker.sampling.parameters import SamplingParameters
from benchmarks.in_process import InProcessEngine
from benchmarks.machine import describe_command, describe_machine, describe_versions
from benchmarks.report import Figure, Report, Target
from benchmarks.service import NodeSizes
from benchmarks.workload import load_workload

MIB = 1 << 20
BATCHES = (1, 8)
NEW_TOKENS = 64
SIZES = NodeSizes(device_bytes=768 * MIB, model_cache_bytes=640 * MIB)
#: What a constrained step may take at most, as a share of a free one.
_LIMIT = 1.05
_RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["person", "animal", "thing"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
#: More records than there are tokens for.
SCHEMA: dict[str, Any] = {"type": "array", "items": _RECORD, "minItems": NEW_TOKENS}


@dataclass
class Steps:
    """Decode steps of one kind and batch, each round's median in milliseconds."""

    name: str
    batch: int
    sampling: SamplingParameters | None
    step_ms: list[float] = field(default_factory=list)
    processor_ms: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)

    def run(self, engine: InProcessEngine, prompts: Sequence[list[int]]) -> None:
        """One round. Raises AssertionError if it differs from the one before."""
        walls: list[float] = []
        spent: list[float] = []
        last = time.process_time_ns()

        def on_step(step: StepBatch) -> None:
            nonlocal last
            now = time.process_time_ns()
            if step.decode_sequences == self.batch and not step.prefill_tokens:
                walls.append(step.step_time_ns / 1e6)
                spent.append((now - last) / 1e6)
            last = now

        run = engine.generate(list(prompts[: self.batch]), NEW_TOKENS, self.sampling, on_step)
        assert self.tokens in ([], run.tokens), f"{self.name}: tokens differ between rounds"
        self.tokens = run.tokens
        self.step_ms.append(statistics.median(walls))
        self.processor_ms.append(statistics.median(spent))

    def figures(self) -> list[Figure]:
        """Without the warm-up."""
        name = f"{self.name}, batch {self.batch}"
        return [
            Figure(f"{name}: step", "ms", self.step_ms[1:]),
            Figure(f"{name}: processor time per step", "ms", self.processor_ms[1:]),
        ]


def main() -> None:
    """Measure, write the report, print it."""
    options = _options()
    machine = describe_machine()
    path = fetch_demo_model()
    prompts = load_workload(path, NEW_TOKENS).prompts
    held = SamplingParameters(constraint=Constraint.json_schema(SCHEMA))
    pairs = [(Steps("free", batch, None), Steps("held", batch, held)) for batch in BATCHES]
    engine = InProcessEngine(path, SIZES, options.threads)
    try:
        for _ in range(options.rounds + 1):
            for free, constrained in pairs:
                free.run(engine, prompts)
                constrained.run(engine, prompts)
    finally:
        engine.close()
    _check(path, [tokens for _, constrained in pairs for tokens in constrained.tokens])
    report = _report(pairs, machine, options.threads)
    report.write(options.out, "constrained-output")
    print(report.markdown())


def _check(path: Path, answers: Sequence[list[int]]) -> None:
    """Every answer is the beginning of a list of records."""
    tokenizer = get_tokenizer(str(path))
    for tokens in answers:
        text = str(tokenizer.decode(tokens)).replace("\n", "").replace(" ", "")
        assert len(tokens) == NEW_TOKENS, tokens
        assert text.startswith('[{"name":"'), text


def _report(pairs: Sequence[tuple[Steps, Steps]], machine: dict[str, str], threads: int) -> Report:
    return Report(
        title="Answers that keep to a JSON schema",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=describe_command("benchmarks.constrained_output"),
        machine=machine,
        versions=describe_versions(),
        settings={
            "model": "SmolLM2-135M-Instruct in float32",
            "threads": str(threads),
            "new tokens": f"{NEW_TOKENS} per prompt, greedy",
        },
        figures=[figure for pair in pairs for steps in pair for figure in steps.figures()],
        targets=[
            Target(f"step, held / free, batch {free.batch}", share, "", _LIMIT, False)
            for free, held in pairs
            for share in [_share(free.step_ms[1:], held.step_ms[1:])]
        ],
    )


def _share(free: Sequence[float], held: Sequence[float]) -> float:
    """The median over the rounds, each of which has both."""
    return statistics.median(h / f for f, h in zip(free, held, strict=True))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="besides the first (default: 7)")
    cores = os.cpu_count() or 1
    parser.add_argument(
        "--threads", type=int, default=cores, help=f"of the engine (default here: {cores})"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
