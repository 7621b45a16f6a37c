"""Estimates with intervals, and Student's t."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Probability that lies below the lower end of a 95% interval, and above its upper end.
TAIL = 0.025


def confidence(tail: float) -> str:
    """Write the confidence of intervals that leave out a probability on each side.

    >>> confidence(TAIL), confidence(TAIL / 2)
    ('95%', '97.5%')
    """
    return f"{100 * (1 - 2 * tail):.3g}%"


@dataclass(frozen=True)
class Estimate:
    """A number with the two ends of its interval: of 95%, or of a higher confidence in verdicts of an adaptive sweep.

    An end is infinite where the data give only a bound on the other side, and nan where it is unknown.
    """

    value: float
    low: float
    high: float

    @property
    def is_known(self) -> bool:
        """Whether the number itself is known."""
        return not math.isnan(self.value)

    def __sub__(self, other: Estimate) -> Estimate:
        """Return the difference of two independent estimates.

        On each side, the distances from the values to their ends add in quadrature (Zou and Donner 2008).

        >>> Estimate(0.5, 0.1, 0.6) - Estimate(0.25, 0.0, 0.55)
        Estimate(value=0.25, low=-0.25, high=0.5192582403567252)
        """
        value = self.value - other.value
        below = math.hypot(self.value - self.low, other.high - other.value)
        above = math.hypot(self.high - self.value, other.value - other.low)
        return Estimate(value, value - below, value + above)

    def __format__(self, spec: str) -> str:
        """Write the number and its interval; "?" stands for an unknown end, "-" for an unknown number.

        >>> f"{Estimate(0.1, -0.05, math.nan):+.2f}", f"{Estimate(math.nan, 0, 1):.4f}"
        ('+0.10 [-0.05, ?]', '-')
        """
        if not self.is_known:
            return "-"
        low, high = ("?" if math.isnan(end) else f"{end:{spec}}" for end in (self.low, self.high))
        return f"{self.value:{spec}} [{low}, {high}]"


def normal_quantile(probability: float) -> float:
    """Return the number below which a standard normal variable lies with a probability.

    >>> round(normal_quantile(0.975), 3)
    1.96
    """
    from scipy.special import ndtri

    return float(ndtri(probability))


UNKNOWN = Estimate(math.nan, math.nan, math.nan)


def student_t(n: int, comparisons: int = 1) -> float:
    """Return the two-sided 95% point of Student's t for the mean of n values; nan for fewer than two.

    With several comparisons, their 5% are shared among them (Bonferroni).

    >>> round(student_t(3), 3), round(student_t(30), 3), round(student_t(30, comparisons=4), 3)
    (4.303, 2.045, 2.663)
    """
    from scipy.special import stdtrit  # the same numbers as scipy.stats.t, and a third of its import time

    return float(stdtrit(n - 1, 1 - TAIL / comparisons)) if n > 1 else math.nan


@dataclass
class RunningMean:
    """The mean of a series in which older values count less and less.

    Args:
        memory: number of values that count, about.

    >>> mean = RunningMean(memory=2)
    >>> [round(mean.add(value), 3) for value in (4.0, 1.0, 1.0, math.nan)]
    [4.0, 2.0, 1.429, 1.429]
    """

    memory: float = 20.0
    _sum: float = 0.0
    _weight: float = 0.0

    def add(self, value: float) -> float:
        """Return the mean with one more value; values that are not finite do not count."""
        if math.isfinite(value):
            keep = 1 - 1 / self.memory
            self._sum, self._weight = keep * self._sum + value, keep * self._weight + 1
        return self._sum / self._weight if self._weight else math.nan
