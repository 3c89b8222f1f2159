"""How long one model's steps take on one kind of device."""

from __future__ import annotations

from collections.abc import Sequence as Numbers
from dataclasses import dataclass

from aegaeon_scheduler.core.estimation.recursive_fit import RecursiveFit

#: Rows beyond so many cost extra: they no longer hide behind reading the weights.
_KNEE_ROWS = 32
#: The same for the tokens of a prefill.
_KNEE_TOKENS = 256
#: Standard deviation of a coefficient of the prior, relative to it.
_UNCERTAINTY = 2.0
#: What is added to that per feature, as a share of the fixed cost, so that a coefficient which is
#: nearly 0 by its prior can still be learned.
_DECODE_SPREAD = (0.0, 0.1, 0.1, 1e-3)
_PREFILL_SPREAD = (0.0, 0.03, 0.03, 0.1, 1e-4)
#: Where the number of prompts is among the features of a prefill.
_PROMPTS = 3
#: Every step counts until so many have been; then one of so many.
_EAGER = 64
_STRIDE = 8
#: A mixed step tells of its prefill if that takes at least this share of it.
_MIN_PREFILL_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Measured:
    """The latest step that was looked at: what was expected of it, and what it took, in ns."""

    decode_sequences: int
    prefill_tokens: int
    context_tokens: int
    expected_ns: float
    step_ns: int


class LearnedTimes:
    """A fit, the prior that it began with, and where it was measured last."""

    __slots__ = ("_prior", "fit", "point")

    def __init__(self, prior: Numbers[float], spread: Numbers[float], factor: float = 1.0) -> None:
        """``factor`` tells how much slower than ``prior`` the device is known to be."""
        self._prior = prior
        begin = [factor * c for c in prior]
        self.fit = RecursiveFit(
            begin,
            [_UNCERTAINTY * c + share * begin[0] for c, share in zip(begin, spread, strict=True)],
        )
        #: Features of the latest measurement; empty before the first.
        self.point: tuple[float, ...] = ()

    def learn(self, features: tuple[float, ...], time_ns: float) -> None:
        """Take in a measurement."""
        self.fit.observe(features, time_ns)
        self.point = features

    def factor(self) -> float:
        """How much slower than by its prior the latest measured point is expected to be now; 1
        before the first measurement.
        """
        if not self.point:
            return 1.0
        before = sum([c * x for c, x in zip(self._prior, self.point, strict=True)])
        return self.fit.predict(self.point) / before


class ModelTimes:
    """Decode steps by batch and context, prefills by tokens and context, and steps that do both.

    A step that does both reads the weights once: it is expected to take what its two halves take
    alone, less the cheaper fixed cost. Such steps teach what their prefill took: the decoding half
    is well known, because there are many more steps without a prefill.
    """

    __slots__ = ("_decode_skipped", "_prefill_skipped", "decode", "latest", "prefill")

    def __init__(
        self,
        decode_prior: Numbers[float],
        prefill_prior: Numbers[float],
        decode_factor: float = 1.0,
        prefill_factor: float = 1.0,
    ) -> None:
        """Priors are coefficients of `_decode_features` and `_prefill_features`, in ns."""
        self.decode = LearnedTimes(decode_prior, _DECODE_SPREAD, decode_factor)
        self.prefill = LearnedTimes(prefill_prior, _PREFILL_SPREAD, prefill_factor)
        self.latest: Measured | None = None
        self._decode_skipped = self._prefill_skipped = 0

    @property
    def observed(self) -> int:
        """Measurements taken in."""
        return self.decode.fit.count + self.prefill.fit.count

    def factors(self) -> tuple[float, float]:
        """How much slower than by their priors decode steps and prefills are."""
        return self.decode.factor(), self.prefill.factor()

    def decode_ns(self, batch: float, context_tokens: float) -> float:
        """A decode step of ``batch`` sequences with so many tokens in KV altogether."""
        return self.decode.fit.predict(_decode_features(batch, context_tokens))

    def prefill_ns(self, tokens: float, prompts: float, mean_context: float) -> float:
        """A pass over ``tokens``, each of which attends to ``mean_context`` tokens on average."""
        return self.prefill.fit.predict(_prefill_features(tokens, prompts, mean_context))

    def prompt_ns(self) -> float:
        """What completing a prompt adds to its last pass."""
        return self.prefill.fit.coefficients[_PROMPTS]

    def expected_ns(self, batch: int, context_tokens: int, tokens: int, prompts: int) -> float:
        """Any step; ``context_tokens`` is that of all its sequences."""
        if not tokens:
            return self.decode_ns(batch, context_tokens)
        mean = _mean_context(batch, context_tokens, tokens, prompts)
        prefill = self.prefill_ns(tokens, prompts, mean)
        if not batch:
            return prefill
        shared = min(self.decode.fit.coefficients[0], self.prefill.fit.coefficients[0])
        return self.decode_ns(batch, context_tokens) + prefill - shared

    def learn_decode(self, time_ns: float, batch: float, context_tokens: float) -> None:
        """A decode step took so long."""
        self.decode.learn(_decode_features(batch, context_tokens), time_ns)

    def learn_prefill(
        self, time_ns: float, tokens: float, prompts: float, mean_context: float
    ) -> None:
        """A pass over prompts took so long."""
        self.prefill.learn(_prefill_features(tokens, prompts, mean_context), time_ns)

    def observe(
        self, step_ns: int, batch: int, context_tokens: int, tokens: int, prompts: int
    ) -> bool:
        """Learn from a step, or pass over it; tells whether anything was learned."""
        if self._passes_over(tokens) or step_ns <= 0 or batch + tokens <= 0:
            return False
        before = self.observed
        expected = self.expected_ns(batch, context_tokens, tokens, prompts)
        if not tokens:
            self.learn_decode(step_ns, batch, context_tokens)
        else:
            mean = _mean_context(batch, context_tokens, tokens, prompts)
            left = step_ns - (expected - self.prefill_ns(tokens, prompts, mean))
            if left > _MIN_PREFILL_SHARE * step_ns:
                self.learn_prefill(left, tokens, prompts, mean)
        self.latest = Measured(batch, tokens, context_tokens, expected, step_ns)
        return self.observed > before

    def _passes_over(self, tokens: int) -> bool:
        """Whether a step is not in the sample."""
        if tokens:
            self._prefill_skipped += 1
            if self._prefill_skipped < _STRIDE and self.prefill.fit.count >= _EAGER:
                return True
            self._prefill_skipped = 0
        else:
            self._decode_skipped += 1
            if self._decode_skipped < _STRIDE and self.decode.fit.count >= _EAGER:
                return True
            self._decode_skipped = 0
        return False


def _mean_context(batch: int, context_tokens: int, tokens: int, prompts: int) -> float:
    """Tokens that each of a pass attends to, on average. Several prompts are taken to be equally
    long; beside decoding sequences, whose context is not told apart, one chunk is taken to be all.
    """
    if batch:
        return tokens / 2
    count = max(prompts, 1)
    return max((context_tokens - tokens / 2) / count, 0.0)


def _decode_features(batch: float, context_tokens: float) -> tuple[float, float, float, float]:
    """1, rows, rows beyond the knee, tokens in KV."""
    return 1.0, batch, batch - _KNEE_ROWS if batch > _KNEE_ROWS else 0.0, context_tokens


def _prefill_features(
    tokens: float, prompts: float, mean_context: float
) -> tuple[float, float, float, float, float]:
    """1, tokens, tokens beyond the knee, prompts, pairs of tokens that attend to each other."""
    beyond = tokens - _KNEE_TOKENS if tokens > _KNEE_TOKENS else 0.0
    return 1.0, tokens, beyond, prompts, tokens * mean_context
