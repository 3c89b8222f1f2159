"""How many prompt tokens a step may compute beside decoding sequences."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_worker.engine.events import StepBatch

#: Weight of the newest measurement: the speed of the last dozen steps.
_NEWEST = 1 / 8
#: Share of the time per token that a step may take; the rest is for what is not measured here.
_STEP_SHARE = 0.8
#: Share of a mixed step that its prompt tokens take at least. Where they take less, decoding fills
#: the step, and the most tokens still fit; a larger share would then count decoding as theirs.
_LEAST_PREFILL_SHARE = 1 / 8
#: Of one step, for log-probabilities of prompts: float32 logits, which are 128 MiB, and tokens, of
#: which a reader has several steps' worth before it is behind.
_SCORED_LOGITS = 1 << 25
_SCORED_TOKENS = 512


@dataclass(frozen=True)
class StepLimits:
    """Bounds of one step, in tokens.

    A prefill chunk beside decoding sequences is kept shorter, because every one of them waits for
    it: as long as their time per token allows, and ``mixed_prefill_tokens`` at least, so that
    prompts get on.
    """

    prefill_tokens: int = 512
    mixed_prefill_tokens: int = 128


@dataclass
class PrefillPace:
    """Measured times of one model's steps, in ns; they follow the speed of the device."""

    limits: StepLimits
    vocab_size: int
    _decode_ns: float = field(default=0.0, init=False)
    _token_ns: float = field(default=0.0, init=False)

    @property
    def decode_ns(self) -> int:
        """What a step takes in which all sequences decode; 0 is not known."""
        return int(self._decode_ns)

    def observe(self, step: StepBatch) -> None:
        """Learn from a step, unless its time is not known."""
        if not step.step_time_ns:
            return
        if step.prefill_tokens:
            # Should the decoding part be estimated too high, some of the step is the prompt's.
            most_ns = step.step_time_ns * (1 - _LEAST_PREFILL_SHARE)
            decode_ns = min(self._decode_ns, most_ns) if step.decode_sequences else 0
            token_ns = (step.step_time_ns - decode_ns) / step.prefill_tokens
            self._token_ns = _moved(self._token_ns, token_ns)
        elif step.decode_sequences:
            self._decode_ns = _moved(self._decode_ns, step.step_time_ns)

    @property
    def scored_tokens(self) -> int:
        """Prompt tokens whose logits a step may compute all together."""
        return max(1, min(_SCORED_TOKENS, _SCORED_LOGITS // self.vocab_size))

    def mixed_tokens(self, tpot_ns: int) -> int:
        """Prompt tokens for a step beside sequences that were promised ``tpot_ns`` per token;
        0 is not known."""
        most, fewest = self.limits.prefill_tokens, self.limits.mixed_prefill_tokens
        if not tpot_ns or not self._token_ns:
            return fewest
        spare_ns = _STEP_SHARE * tpot_ns - self._decode_ns
        return max(fewest, min(most, int(spare_ns / self._token_ns)))


def _moved(old: float, new: float) -> float:
    return new if not old else old + (new - old) * _NEWEST
