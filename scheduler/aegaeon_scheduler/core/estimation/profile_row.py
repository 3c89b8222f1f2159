"""Measured rows that seed the estimates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from math import gcd
from statistics import median

from aegaeon_scheduler.core.estimation.model_times import ModelTimes

#: Most prompt tokens that a measuring engine computes in one pass, if it splits at all.
PASS_TOKENS = 4096
#: Prefills of nearly twice as many tokens that take this much longer were not split.
_WHOLE_RATIO = 1.5
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
    def tokens(self) -> int:
        """Of all prompts."""
        return self.input_tokens * self.batch_size


class Profile:
    """Rows of one model on one device.

    Some measuring engines split batches of more than `PASS_TOKENS`. Of those rows the prefill
    column is the first pass alone, and the decode column is a mean over steps that prefill the rest
    as well: no step took that long.
    """

    def __init__(self, rows: Items[ProfileRow]) -> None:
        self.rows = rows
        most = [r.prefill_ns for r in rows if 0.85 * PASS_TOKENS <= r.tokens <= PASS_TOKENS]
        more = [r.prefill_ns for r in rows if r.tokens > 1.7 * PASS_TOKENS]
        whole = most and more and median(more) > _WHOLE_RATIO * median(most)
        self._pass_tokens = max(r.tokens for r in rows) if whole else PASS_TOKENS

    def one_pass(self, row: ProfileRow) -> bool:
        """Whether the decode column is that of a step."""
        return row.tokens <= self._pass_tokens

    def expected_ns(self, row: ProfileRow, times: ModelTimes) -> tuple[float, float]:
        """What ``times`` expects of a row's prefill and decode step."""
        return (
            times.prefill_ns(*self._prefill(row)),
            times.decode_ns(row.batch_size, row.tokens),
        )

    def teach(self, times: ModelTimes) -> None:
        """Let ``times`` learn all rows, in an order that mixes short and long."""
        count = len(self.rows)
        stride = next(s for s in range(_STRIDE, _STRIDE + count + 1) if gcd(s, count) == 1)
        for number in range(_ROUNDS * count):
            row = self.rows[number * stride % count]
            times.learn_prefill(row.prefill_ns, *self._prefill(row))
            if self.one_pass(row):
                times.learn_decode(row.decode_ns, row.batch_size, row.tokens)

    def _prefill(self, row: ProfileRow) -> tuple[float, float, float]:
        """Tokens, prompts and mean context of the pass that the prefill column is of."""
        tokens = min(row.tokens, self._pass_tokens)
        length = min(row.input_tokens, self._pass_tokens)
        return tokens, tokens / length, length / 2


def device_profiles(rows: Iterable[ProfileRow], device: str) -> dict[str, Profile]:
    """Profiles by the letters and digits of their model's name, of a device all of whose words are
    in the name ``device``.
    """
    words, found = set(_words(device)), dict[str, list[ProfileRow]]()
    for row in rows:
        if words.issuperset(_words(row.device)):
            found.setdefault("".join(_words(row.model)), []).append(row)
    return {name: Profile(held) for name, held in found.items()}


def find_profile(profiles: Mapping[str, Profile], model: str) -> Profile | None:
    """The profile whose name begins the model's own, without its publisher's: other weights of the
    same architecture take as long. The longest such name counts.
    """
    letters = "".join(_words(model.rpartition("/")[2]))
    # "qwen2.5-7" does not begin "qwen2.5-72b".
    names = [n for n in profiles if letters.startswith(n) and not letters[len(n) :][:1].isdigit()]
    return profiles[max(names, key=len)] if names else None


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())
