"""Recursive least squares with forgetting, non-negative and robust: one fit of a few features."""

from __future__ import annotations

from collections.abc import Sequence as Numbers

#: Expected relative noise of one measurement; sets how soon measurements outweigh the prior.
_NOISE = 0.1
#: Weight of older measurements: half of the memory is gone after 34.
_FORGETTING = 0.98
#: Deviations beyond so many usual ones count as this many: the influence of an outlier is bounded.
_CLIP = 3.0
#: So much may a single measurement raise the usual deviation, relative to it, before its gain.
_DEVIATION_CLIP = 4.0
_DEVIATION_GAIN = 0.1
_MIN_DEVIATION = 0.02


class RecursiveFit:
    """``time = sum of coefficient * feature`` with coefficients of at least 0, learned one
    measurement at a time.

    Least squares of *relative* errors in covariance form with exponential forgetting. Three things
    are added to the textbook recursion: the innovation is clipped at a multiple of the usual
    deviation (Huber's influence function), negative coefficients are projected to 0 in the metric
    of the covariance, and the covariance never exceeds that of the prior, so that directions that
    are not excited for long keep their value instead of winding up.
    """

    __slots__ = ("_covariance", "_limits", "coefficients", "count", "deviation")

    def __init__(self, prior: Numbers[float], uncertainty: Numbers[float]) -> None:
        """``uncertainty`` is the standard deviation of each coefficient of ``prior``."""
        self.coefficients = list(prior)
        #: Measurements taken in.
        self.count = 0
        #: Usual relative deviation of a measurement from its prediction.
        self.deviation = 1.0
        self._limits = [(deviation / _NOISE) ** 2 for deviation in uncertainty]
        size = len(self._limits)
        self._covariance = [[0.0] * size for _ in range(size)]
        for index, variance in enumerate(self._limits):
            self._covariance[index][index] = variance

    def predict(self, features: Numbers[float]) -> float:
        """Expected time; at least 0."""
        return sum([c * x for c, x in zip(self.coefficients, features, strict=True)])

    def observe(self, features: Numbers[float], measured: float) -> None:
        """Take in one measurement; ``measured`` must be positive and finite."""
        expected = self.predict(features)
        scale = 1.0 / max(expected, measured)
        error = self._clip((measured - expected) * scale)
        scaled = [x * scale for x in features]
        spread = [
            sum([p * x for p, x in zip(row, scaled, strict=True)]) for row in self._covariance
        ]
        total = 1.0 + sum([s * x for s, x in zip(spread, scaled, strict=True)])
        step = error / total
        self.coefficients = [c + s * step for c, s in zip(self.coefficients, spread, strict=True)]
        self._forget(spread, total)
        if min(self.coefficients) < 0.0:
            self._project()
        self.count += 1

    def _clip(self, error: float) -> float:
        """The part of a relative error that counts; keeps the usual deviation up to date."""
        usual, size = self.deviation, abs(error)
        # A mean at first, so that an unknown noise is known soon.
        gain = max(_DEVIATION_GAIN, 1.0 / (self.count + 2))
        self.deviation = max(
            usual + gain * (min(size, _DEVIATION_CLIP * usual) - usual), _MIN_DEVIATION
        )
        most = _CLIP * usual
        return error if size <= most else (most if error > 0.0 else -most)

    def _forget(self, spread: list[float], total: float) -> None:
        """Less uncertain in the direction just measured, more uncertain in all, up to the prior."""
        rows, size = self._covariance, len(spread)
        for i in range(size):
            row, share = rows[i], spread[i] / total
            # One triangle, mirrored: asymmetries of rounding would grow without bound.
            for j in range(i, size):
                row[j] = rows[j][i] = (row[j] - share * spread[j]) / _FORGETTING
        for i in range(size):
            variance = rows[i][i]
            limit = max(self._limits[i], (self.coefficients[i] / _NOISE) ** 2)
            if variance > limit:
                # Scaling row and column alike keeps the matrix positive semi-definite.
                factor = (limit / variance) ** 0.5
                rows[i] = [p * factor for p in rows[i]]
                for row in rows:
                    row[i] *= factor

    def _project(self) -> None:
        """The nearest coefficients, by the covariance, without negative ones."""
        found = self.coefficients
        for _ in found:
            lowest = min(found)
            if lowest >= 0.0:
                break
            index = found.index(lowest)
            variance = self._covariance[index][index]
            if variance <= 0.0:
                break
            ratio = lowest / variance
            column = self._covariance[index]
            found = [c - p * ratio for c, p in zip(found, column, strict=True)]
            found[index] = 0.0
        self.coefficients = [max(c, 0.0) for c in found]
