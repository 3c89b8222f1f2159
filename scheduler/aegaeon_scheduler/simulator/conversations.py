"""Requests whose prompts begin alike: conversations that go on, below common instructions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from aegaeon_scheduler.simulator.workload import Arrival

_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Conversations:
    """Conversations with one model; they begin as a Poisson process.

    A turn's prompt is everything said before and a new message. Lengths are in tokens.
    """

    model: str
    #: Conversations per second.
    rate: float
    #: Instructions that conversations begin with, each as often as the others, and their length.
    instructions: int = 64
    instruction_tokens: int = 1500
    #: On average. Any turn may be the last, with the same probability; lengths are exponential.
    turns: float = 6.0
    message_tokens: float = 300.0
    answer_tokens: float = 150.0
    #: From a prompt to the next one, on average, beyond the time that the answer takes at TPOT.
    pause_s: float = 10.0
    tpot_s: float = 0.1

    def draw(self, seconds: float, seed: int) -> list[Arrival]:
        """Arrivals of the first ``seconds``, in order of time. Answers consist of token 0."""
        draw = random.Random(f"{seed}/{self.model}")
        fresh = Tokens()
        common = [fresh.take(self.instruction_tokens) for _ in range(self.instructions)]
        found: list[Arrival] = []
        start_s = draw.expovariate(self.rate)
        while start_s < seconds:
            found += self._conversation(start_s, draw.choice(common), fresh, draw)
            start_s += draw.expovariate(self.rate)
        found = [arrival for arrival in found if arrival.time_ns < seconds * _SECOND]
        return sorted(found, key=lambda arrival: arrival.time_ns)

    def _conversation(
        self, time_s: float, beginning: list[int], fresh: Tokens, draw: random.Random
    ) -> Iterator[Arrival]:
        said = list(beginning)
        while True:
            said = said + fresh.take(_length(draw, self.message_tokens))
            answer = _length(draw, self.answer_tokens)
            yield Arrival(round(time_s * _SECOND), self.model, len(said), answer, said)
            said = said + [0] * answer
            time_s += answer * self.tpot_s + draw.expovariate(1 / self.pause_s)
            if draw.random() < 1 / self.turns:
                return


class Tokens:
    """Token ids that nobody has used."""

    def __init__(self) -> None:
        self._next = 1

    def take(self, count: int) -> list[int]:
        """So many of them."""
        first, self._next = self._next, self._next + count
        return list(range(first, first + count))


def _length(draw: random.Random, mean: float) -> int:
    return max(1, round(draw.expovariate(1 / mean)))
