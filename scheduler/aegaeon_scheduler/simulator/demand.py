"""Which models get how many requests, of what lengths; and arrivals drawn from that."""

from __future__ import annotations

import random
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from aegaeon_scheduler.simulator.catalog import ModelShape
from aegaeon_scheduler.simulator.errors import InputError
from aegaeon_scheduler.simulator.objective import DEFAULT_OBJECTIVE, Objective
from aegaeon_scheduler.simulator.workload import Arrival

_SECOND = 1_000_000_000
#: Input and output tokens of requests, each as likely as the others.
Lengths = Items[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests that one model gets, as a Poisson process."""

    model: str
    shape: ModelShape
    #: Requests per second.
    rate: float
    lengths: Lengths
    objective: Objective = DEFAULT_OBJECTIVE


def same_traffic(
    models: int,
    rate: float,
    shapes: Items[ModelShape],
    lengths: Lengths,
    objective: Objective = DEFAULT_OBJECTIVE,
) -> list[Traffic]:
    """Models that differ only in their shapes, which they have in turn."""
    return [
        Traffic(f"synth_model_{index}", shapes[index % len(shapes)], rate, lengths, objective)
        for index in range(models)
    ]


def lengths_of(arrivals: Iterable[Arrival]) -> Lengths:
    """Lengths as a workload has them."""
    return [(arrival.input_tokens, arrival.output_tokens) for arrival in arrivals]


def scale_lengths(lengths: Lengths, inputs: float | None, outputs: float | None) -> Lengths:
    """The same distribution, stretched to other mean lengths; None keeps a mean."""
    factors = []
    for column, mean in enumerate((inputs, outputs)):
        if mean is not None and not 1 <= mean < 1e6:
            raise InputError(f"a mean length is {mean} tokens; it must be at least 1")
        found = sum(pair[column] for pair in lengths) / len(lengths)
        factors.append(1.0 if mean is None else mean / found)
    first, second = factors
    return [(max(1, round(i * first)), max(1, round(o * second))) for i, o in lengths]


def draw_workload(demand: Items[Traffic], seconds: float, seed: int) -> list[Arrival]:
    """Arrivals of the first ``seconds``, in order of time.

    A model's requests depend on its place and on the seed alone, so that more models, or more
    seconds, only add to a workload. Raises `InputError` when there is nothing to draw.
    """
    if not demand or not 0 < seconds < 1e6:
        raise InputError(f"{len(demand)} models for {seconds} s: both must be positive")
    arrivals = []
    for index, traffic in enumerate(demand):
        if not 0 < traffic.rate < 1e6:
            raise InputError(
                f"the rate of model {traffic.model!r} is {traffic.rate} requests/s; it must be "
                "positive"
            )
        draw = random.Random(f"{seed}/{index}")
        time = draw.expovariate(traffic.rate)
        while time < seconds:
            inputs, outputs = draw.choice(traffic.lengths)
            arrivals.append(Arrival(round(time * _SECOND), traffic.model, inputs, outputs))
            time += draw.expovariate(traffic.rate)
    if not arrivals:
        raise InputError(f"no request arrives within {seconds:g} s; simulate a longer time")
    return sorted(arrivals, key=lambda arrival: arrival.time_ns)
