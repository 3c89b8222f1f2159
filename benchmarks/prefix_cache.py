"""Time to the first token of prompts that begin with the same 1,000 tokens, on CPUs.

The whole stack serves one prompt after another, each a common beginning and a few tokens of its
own, with the request's switch for the cache off and on by turns. Either the model stays on the
device, or another one has had it meanwhile, so that weights and KV come back from host memory in
both cases. Every prompt must get the same first token with and without.
"""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
from transformers import AutoTokenizer

from aegaeon import LLMService, Request
from aegaeon.demo_model import fetch_demo_model
from aegaeon.model_spec import ModelSpec
from aegaeon.step_output import StepOutput
from benchmarks.machine import describe_command, describe_machine, describe_versions
from benchmarks.report import Figure, Report, Target
from benchmarks.service import NodeSizes, start_service

MIB = 1 << 20
COMMON_TOKENS = 1000
OWN_TOKENS = 20
#: Holds the weights of one model and some 2,000 tokens of KV.
SIZES = NodeSizes(device_bytes=640 * MIB, model_cache_bytes=2048 * MIB, cpu_slab_bytes=128 * MIB)


@dataclass
class Times:
    """Of one way to serve the prompts: milliseconds, one entry per prompt."""

    name: str
    wall_ms: list[float] = field(default_factory=list)
    processor_ms: list[float] = field(default_factory=list)
    cached_tokens: list[int] = field(default_factory=list)

    def figures(self) -> list[Figure]:
        """Wall clock and processor time."""
        return [
            Figure(f"{self.name}: time to the first token", "ms", self.wall_ms),
            Figure(f"{self.name}: processor time of all processes", "ms", self.processor_ms),
        ]


def main() -> None:
    """Measure, write the report, print it."""
    options = _options()
    machine = describe_machine()
    path = fetch_demo_model()
    first, other = ModelSpec("first", str(path)), ModelSpec("other", str(path))
    prompts = _prompts(path, options.rounds)
    with start_service([first, other], SIZES) as service:
        stays = _measure(service, first, None, prompts, "model on the device")
        returns = _measure(service, first, other, prompts, "model back from host memory")
    report = _report(stays, returns, machine)
    report.write(options.out, "prefix-cache")
    print(report.markdown())


def _report(
    stays: tuple[Times, Times], returns: tuple[Times, Times], machine: dict[str, str]
) -> Report:
    limits = (("on the device", stays), ("in host memory", returns))
    return Report(
        title="Prompts that begin alike",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        command=describe_command("benchmarks.prefix_cache"),
        machine=machine,
        versions=describe_versions(),
        settings={
            "model": "SmolLM2-135M-Instruct in float32",
            "prompts": f"{COMMON_TOKENS} common tokens and {OWN_TOKENS} own ones",
            "found": f"{min(stays[1].cached_tokens)} and {min(returns[1].cached_tokens)} tokens",
        },
        figures=[figure for times in (*stays, *returns) for figure in times.figures()],
        targets=[
            Target(f"processor time, found {where} / computed", _share(times), "", 0.5, False)
            for where, times in limits
        ],
    )


def _measure(
    service: LLMService,
    model: ModelSpec,
    between: ModelSpec | None,
    prompts: list[list[int]],
    name: str,
) -> tuple[Times, Times]:
    """Without and with the cache, by turns, after a warm-up."""
    without, using = Times(f"{name}, computed"), Times(f"{name}, found")
    for round_, prompt in enumerate(prompts):
        request = Request(model, 0.0, round_, prompt, 1, ignore_eos=True)
        tokens = []
        for times, caching in ((without, False), (using, True)):
            if between is not None:
                _timed(service, Request(between, 0.0, "between", [1, 2, 3], 1, ignore_eos=True))
            last, wall_ms, processor_ms = _timed(service, replace(request, prefix_caching=caching))
            tokens.append(last.new_token_id)
            if round_:
                times.wall_ms.append(wall_ms)
                times.processor_ms.append(processor_ms)
                times.cached_tokens.append(last.cached_tokens)
        assert tokens[0] == tokens[1], f"round {round_}: {tokens}"
    return without, using


def _timed(service: LLMService, request: Request) -> tuple[StepOutput, float, float]:
    """The only token, and what it took."""
    processor, start = _processor_s(), time.perf_counter()
    [token] = service.stream(request)
    wall_s = time.perf_counter() - start
    return token, wall_s * 1e3, (_processor_s() - processor) * 1e3


def _processor_s() -> float:
    own = psutil.Process()
    return sum(sum(p.cpu_times()[:2]) for p in (own, *own.children(recursive=True)))


def _share(times: tuple[Times, Times]) -> float:
    without, using = (figure[1].median for figure in (t.figures() for t in times))
    return using / without


def _prompts(path: Path, rounds: int) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(path)
    ids = tokenizer.encode((Path(__file__).parents[1] / "LICENSE").read_text())
    common, rest = ids[:COMMON_TOKENS], ids[COMMON_TOKENS:]
    return [common + own for own in _tails(rest, rounds + 1)]


def _tails(ids: list[int], count: int) -> Iterator[list[int]]:
    for number in range(count):
        yield ids[number * OWN_TOKENS : (number + 1) * OWN_TOKENS]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="prompts per case (default: 5)")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
