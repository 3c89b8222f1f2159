"""Measured rows that seed the estimates."""

from __future__ import annotations

import re
from collections.abc import Sequence as Items
from dataclasses import dataclass

from aegaeon_scheduler.core.estimation.model_times import ModelTimes

#: Prompt tokens that the measuring engine computed in one pass. Of a larger batch the prefill
#: column is the first pass alone, and the decode column is a mean over steps that prefill the rest
#: as well: no step took that long.
PASS_TOKENS = 4096
#: Rows are taken this far apart, and twice, because the latest ones weigh most.
_STRIDE = 37
_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """Times of ``batch_size`` prompts of ``input_tokens`` each, in ns."""

    device: str
    model: str
    input_tokens: int
    batch_size: int
    prefill_ns: float
    decode_ns: float

    @property
    def one_pass(self) -> bool:
        """The decode column is that of a step."""
        return self.input_tokens * self.batch_size <= PASS_TOKENS

    def expected_ns(self, times: ModelTimes) -> tuple[float, float]:
        """What ``times`` expects of prefill and decode step."""
        return (
            times.prefill_ns(*self._prefill()),
            times.decode_ns(self.batch_size, self.batch_size * self.input_tokens),
        )

    def teach(self, times: ModelTimes) -> None:
        """Let ``times`` learn the row."""
        times.learn_prefill(self.prefill_ns, *self._prefill())
        if self.one_pass:
            context = self.batch_size * self.input_tokens
            times.learn_decode(self.decode_ns, self.batch_size, context)

    def _prefill(self) -> tuple[float, float, float]:
        tokens = min(self.input_tokens * self.batch_size, PASS_TOKENS)
        length = min(self.input_tokens, PASS_TOKENS)
        return tokens, tokens / length, length / 2


def seed(times: ModelTimes, rows: Items[ProfileRow]) -> None:
    """Let ``times`` learn measured rows, in an order that mixes short and long."""
    count = len(rows)
    stride = next(s for s in range(_STRIDE, _STRIDE + count + 1) if _coprime(s, count))
    for number in range(_ROUNDS * count):
        rows[number * stride % count].teach(times)


def rows_for(rows: Items[ProfileRow], device: str, model: str) -> list[ProfileRow]:
    """Rows of a device and a model by name, whatever the case and the punctuation.

    All words of the row's device are in the worker's. The row's model begins the model's own name,
    without its publisher's: other weights of the same architecture take as long. The longest such
    name counts.
    """
    device_words, letters = set(_words(device)), "".join(_words(model.rpartition("/")[2]))
    found: dict[str, list[ProfileRow]] = {}
    for row in rows:
        name = "".join(_words(row.model))
        begins = letters.startswith(name) and not letters[len(name) :][:1].isdigit()
        if begins and set(_words(row.device)) <= device_words:
            found.setdefault(name, []).append(row)
    return found[max(found, key=len)] if found else []


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


def _coprime(a: int, b: int) -> bool:
    while b:
        a, b = b, a % b
    return a == 1
