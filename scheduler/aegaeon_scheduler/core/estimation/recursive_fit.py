"""Recursive least squares with forgetting, non-negative and robust: one fit of a few features."""

from __future__ import annotations

from collections.abc import Sequence as Numbers
from math import exp, expm1, log

#: Weight of older measurements: half of the memory is gone after 34.
_FORGETTING = 0.98
#: Errors beyond so many usual ones count as this many: the influence of an outlier is bounded.
_CLIP = 3.0
#: So many usual errors at most go into the usual error, so that an outlier hardly raises it.
_DEVIATION_CLIP = 4.0
_DEVIATION_GAIN = 0.1
_MIN_DEVIATION = 0.02
#: The usual error before it is known, and after a change.
_FIRST_DEVIATION = 1.0
_CHANGED_DEVIATION = 0.3
#: More than this is not noise of the measurements, but what has still to be learned.
_MAX_NOISE = 0.3
#: Highest variance of what is expected that makes room for a larger error.
_MAX_DOUBT = 0.25
#: This much too long or too short, by the logarithm, is far off even where errors are large.
_FAR = log(2.0)
#: So many measurements in a row that are far off to the same side are a change, not outliers.
_CHANGE_RUN = 5
#: The first measurement may set the level of the prior higher or lower by this logarithm at most.
_MAX_RESCALE = log(1e4)


class RecursiveFit:
    """``time = sum of coefficient * feature`` with coefficients of at least 0, learned one
    measurement at a time.

    Least squares of the *logarithms* of measured by expected time, linearised so that a step of
    full gain meets the measurement, in covariance form with exponential forgetting. To the textbook
    recursion are added: the error is clipped at a multiple of what is usual for it (Huber's
    influence function); negative coefficients are projected to 0 in the metric of the covariance;
    variances never exceed those of the prior or the coefficients themselves, so that directions
    that are not excited for long keep their value instead of winding up; and the first measurement,
    or a run of those that are far off to the same side, scales all coefficients, because a slower
    device is slower at everything.
    """

    __slots__ = ("_covariance", "_far", "_limits", "_run", "coefficients", "count", "deviation")

    def __init__(self, prior: Numbers[float], uncertainty: Numbers[float]) -> None:
        """``uncertainty`` is the standard deviation of each coefficient of ``prior``."""
        self.coefficients = list(prior)
        #: Measurements taken in.
        self.count = 0
        #: Usual relative error of an expected time, as a logarithm.
        self.deviation = _FIRST_DEVIATION
        self._limits = [deviation**2 for deviation in uncertainty]
        self._covariance = _diagonal(self._limits)
        #: Measurements in a row that are far off, negative when too short, and the error of the
        #: least far one.
        self._run = 0
        self._far = 0.0

    def predict(self, features: Numbers[float]) -> float:
        """Expected time; at least 0."""
        return sum([c * x for c, x in zip(self.coefficients, features, strict=True)])

    def observe(self, features: Numbers[float], measured: float) -> None:
        """Take in one measurement; ``measured`` must be positive and finite."""
        expected = self.predict(features) or measured
        error = log(measured / expected)
        if not self.count or self._changed(error):
            factor = self._begin_anew(error)
            expected *= factor
            error -= log(factor)
        self.count += 1
        noise = min(self.deviation, _MAX_NOISE) ** 2
        spread, variance = self._doubt(features)
        error = self._clip(error, variance / expected**2)
        # The mean of expected and (clipped) measured time that makes their difference `error`.
        mean = expected * (expm1(error) / error if error else 1.0)
        total = noise * mean**2 + variance
        step = error * mean / total
        self.coefficients = [c + s * step for c, s in zip(self.coefficients, spread, strict=True)]
        self._forget(spread, total)
        if min(self.coefficients) < 0.0:
            self._project()

    def _doubt(self, features: Numbers[float]) -> tuple[list[float], float]:
        """The covariance times ``features``, and the variance of their expected time."""
        spread = [
            sum([p * x for p, x in zip(row, features, strict=True)]) for row in self._covariance
        ]
        variance = sum([s * x for s, x in zip(spread, features, strict=True)])
        if variance < 0.0:  # rounding, after features of very different sizes
            self._covariance = _diagonal(self._limits)
            spread = [limit * x for limit, x in zip(self._limits, features, strict=True)]
            variance = sum([s * x for s, x in zip(spread, features, strict=True)])
        return spread, variance

    def _changed(self, error: float) -> bool:
        """Whether what was measured is no longer what was learned."""
        if abs(error) <= min(_CLIP * self.deviation, _FAR):
            self._run = 0
            return False
        side = 1 if error > 0.0 else -1
        if self._run * side > 0:
            self._run += side
            self._far = min(self._far, error) if side > 0 else max(self._far, error)
        else:
            self._run, self._far = side, error
        return abs(self._run) >= _CHANGE_RUN

    def _begin_anew(self, error: float) -> float:
        """Set the level by the first measurement, or by the least far one of a run; returns the
        factor.
        """
        if not self.count:
            factor = exp(min(max(error, -_MAX_RESCALE), _MAX_RESCALE))
            self._rescale(factor)
            return factor
        factor = exp(self._far)
        self._rescale(factor)
        self._covariance = _diagonal([c * c for c in self.coefficients])
        self.deviation = _CHANGED_DEVIATION
        self._run = 0
        return factor

    def _rescale(self, factor: float) -> None:
        self.coefficients = [c * factor for c in self.coefficients]
        square = factor * factor
        self._limits = [limit * square for limit in self._limits]
        self._covariance = [[p * square for p in row] for row in self._covariance]

    def _clip(self, error: float, doubt: float) -> float:
        """The part of an error that counts where what is expected has the variance ``doubt``; keeps
        the usual error up to date.
        """
        usual, size = self.deviation, abs(error)
        # A mean at first, so that the noise is known soon.
        gain = max(_DEVIATION_GAIN, 1.0 / (self.count + 1))
        self.deviation = max(
            usual + gain * (min(size, _DEVIATION_CLIP * usual) - usual), _MIN_DEVIATION
        )
        most = _CLIP * (usual**2 + min(doubt, _MAX_DOUBT)) ** 0.5
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
            limit = max(self._limits[i], self.coefficients[i] ** 2)
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


def _diagonal(variances: Numbers[float]) -> list[list[float]]:
    size = range(len(variances))
    return [[variances[i] if i == j else 0.0 for j in size] for i in size]
