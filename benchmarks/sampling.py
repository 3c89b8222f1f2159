"""What choosing the tokens of one step costs on a CPU, by kind of sampling.

The logits are a real model's, at as many positions of a text as there are rows. Times are processor
times of one core around the worker's own function; the least of the rounds counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from types import MappingProxyType

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from aegaeon.demo_model import fetch_demo_model
from aegaeon_worker.engine.commands import SequenceSpec, StopConditions
from aegaeon_worker.engine.sampler import choose_tokens
from aegaeon_worker.engine.sequence import Sequence
from aegaeon_worker.sampling.parameters import SamplingParameters
from benchmarks.machine import describe_machine, describe_versions
from benchmarks.report import Table

_ROWS = (8, 64)
#: Tokens of each sequence, for penalties to count.
_PROMPT_TOKENS = 1000
_KINDS: Mapping[str, SamplingParameters | None] = MappingProxyType(
    {
        "greedy": None,
        "temperature": SamplingParameters(temperature=1.0),
        "temperature, min-p 0.05": SamplingParameters(temperature=1.0, min_p=0.05),
        "temperature, top-k 50": SamplingParameters(temperature=1.0, top_k=50),
        "temperature, top-p 0.95": SamplingParameters(temperature=1.0, top_p=0.95),
        "temperature, top-k 50, top-p 0.95": SamplingParameters(
            temperature=1.0, top_k=50, top_p=0.95
        ),
        "greedy, penalties over 1,000 tokens": SamplingParameters(repetition_penalty=1.1),
        "greedy, 20 log-probabilities": SamplingParameters(logprobs=20),
    }
)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="default: %(default)s")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = describe_machine()
    logits = _real_logits(max(_ROWS))
    rows = [
        [name, *(f"{_least_ms(logits[:count], kind, options.rounds):.2f}" for count in _ROWS)]
        for name, kind in _KINDS.items()
    ]
    header = ["ms of processor time", *(f"{count} rows" for count in _ROWS)]
    for facts in (machine, describe_versions()):
        print("- " + ", ".join(f"{key} {value}" for key, value in facts.items()))
    print(f"- vocabulary of {logits.shape[1]} tokens\n")
    print("\n".join(Table(header, rows).markdown()))


@torch.inference_mode()
def _real_logits(count: int) -> torch.Tensor:
    """Of the demo model, after ``count`` beginnings of a text."""
    folder = fetch_demo_model()
    text = " ".join(fetch_demo_model.__doc__ or "" for _ in range(count))
    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt").input_ids[:, : 4 * count]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    logits: torch.Tensor = model(ids).logits[0, ::4].float()
    return logits


def _least_ms(logits: torch.Tensor, kind: SamplingParameters | None, rounds: int) -> float:
    stop = StopConditions(1, 0, frozenset(), 1 << 20)
    prompt = list(range(_PROMPT_TOKENS))
    sequences = [
        Sequence(SequenceSpec(row, "", prompt, [], stop, None, kind)) for row in range(len(logits))
    ]
    times = []
    for _ in range(rounds):
        consumed = logits.clone()
        start = time.process_time_ns()
        choose_tokens(consumed, sequences).wait()
        times.append((time.process_time_ns() - start) / 1e6)
    return min(times)


if __name__ == "__main__":
    main()
