"""Requests to send: Poisson arrivals over many models, or those of a workload file."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aegaeon.errors import ConfigError
from aegaeon.model_spec import ModelSpec
from aegaeon.request import Request
from aegaeon.workload import WorkloadEntry


@dataclass(frozen=True)
class LoadModel:
    """A deployed model that gets load."""

    name: str
    vocab_size: int
    #: Context limit in tokens.
    max_model_len: int


@dataclass(frozen=True)
class Drawn:
    """What arrivals and lengths are drawn from."""

    #: Requests/s of each model.
    rate: float
    #: Length of the arrivals, in seconds.
    seconds: float
    #: Mean lengths; drawn evenly between a half and one and a half of them.
    input_tokens: int
    output_tokens: int
    seed: int


@dataclass(frozen=True)
class Limits:
    """Seconds: objectives, by which tokens are on time, and when a request fails."""

    ttft_s: float
    tpot_s: float
    timeout_s: float


def drawn_entries(drawn: Drawn, models: Sequence[LoadModel]) -> list[WorkloadEntry]:
    """Poisson arrivals of every model, in order; the same seed always gives the same ones.

    Raises ConfigError when nothing arrives.
    """
    if not 0 < drawn.rate < 1e6:
        raise ConfigError(f"--rates: {drawn.rate:g} requests/s; expected a number above 0")
    entries = []
    for model in models:
        # Of its own, so that a model's arrivals do not depend on which others are there.
        dice = random.Random(f"{drawn.seed} {model.name}")
        at = dice.expovariate(drawn.rate)
        while at < drawn.seconds:
            lengths = [_length(dice, n) for n in (drawn.input_tokens, drawn.output_tokens)]
            entries.append(WorkloadEntry(at, model.name, *lengths))
            at += dice.expovariate(drawn.rate)
    if not entries:
        raise ConfigError(
            f"no request arrives within {drawn.seconds:g} s at {drawn.rate:g} requests/s per "
            "model; raise --rates or --seconds"
        )
    return sorted(entries, key=lambda entry: entry.arrival_s)


def mapped_entries(
    entries: Sequence[WorkloadEntry], models: Sequence[LoadModel]
) -> list[WorkloadEntry]:
    """A file's entries; models that are not deployed are mapped to those that are, in turn."""
    names = {model.name for model in models}
    homes: dict[str, str] = {}
    for entry in entries:
        own = entry.model if entry.model in names else models[len(homes) % len(models)].name
        homes.setdefault(entry.model, own)
    return [replace(entry, model=homes[entry.model]) for entry in entries]


def requests_of(
    entries: Sequence[WorkloadEntry], models: Sequence[LoadModel], limits: Limits, seed: int
) -> list[Request]:
    """With made-up prompts, cut to the model's context; end tokens are ignored."""
    by_name = {model.name: model for model in models}
    requests = []
    for number, entry in enumerate(entries):
        model = by_name[entry.model]
        output = min(entry.output_tokens, model.max_model_len - 1)
        prompt = min(entry.input_tokens, model.max_model_len - output)
        dice = random.Random(f"{seed} {number}")
        requests.append(
            Request(
                # A spec, so that deadlines are those of this run.
                model=ModelSpec(model.name, ttft_slo_s=limits.ttft_s, tpot_slo_s=limits.tpot_s),
                arrival_time=entry.arrival_s,
                request_id=f"bench-{number}",
                prompt_token_ids=dice.choices(range(model.vocab_size), k=prompt),
                decode_tokens=output,
                ignore_eos=True,
                timeout_s=limits.timeout_s,
                ttft_slo_s=limits.ttft_s,
                tpot_slo_s=limits.tpot_s,
            )
        )
    return requests


def _length(dice: random.Random, mean: int) -> int:
    return dice.randint(max(1, mean // 2), mean + mean // 2)
