"""The difference between two losses, paired by seed, and whether it is significant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from expertp.util.statistics import student_t


@dataclass(frozen=True)
class PairedDifference:
    """Mean difference over seeds; nan where a run has diverged, since the other seeds alone would be biased.

    Args:
        mean: mean over the seeds that both have.
        error: its standard error; nan with one seed.
        n: number of these seeds.
    """

    mean: float
    error: float
    n: int

    @property
    def half_width(self) -> float:
        """Half width of the 95% interval, by Student's t."""
        return student_t(self.n) * self.error

    @property
    def is_lower(self) -> bool:
        """Whether the first is significantly lower."""
        return self.mean < -self.half_width

    @property
    def is_higher(self) -> bool:
        """Whether the first is significantly higher."""
        return self.mean > self.half_width

    def is_at_most(self, bound: float, comparisons: int = 1) -> bool | None:
        """Return whether the difference is at most `bound`; None where its 95% interval contains the bound.

        False is corrected for the number of comparisons from which this one was taken. True is not: what holds for
        every one of them needs no correction.
        """
        if self.mean + self.half_width <= bound:
            return True
        return False if self.mean - student_t(self.n, comparisons) * self.error > bound else None

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "unknown, a run has diverged"
        return f"{self.mean:+.4f} (one seed)" if math.isnan(self.error) else f"{self.mean:+.4f} ± {self.error:.4f}"


def paired(one: Sequence[float], other: Sequence[float]) -> PairedDifference:
    """Return one minus other, seed by seed; inf is a diverged run, nan a missing one.

    >>> print(paired([3.0, 3.2], [2.9, 3.0]))
    +0.1500 ± 0.0500
    >>> print(paired([3.0, math.inf], [2.9, 3.0]))
    unknown, a run has diverged
    """
    changes = [a - b for a, b in zip(one, other, strict=True) if not (math.isnan(a) or math.isnan(b))]
    if not changes or math.inf in (*one, *other):
        return PairedDifference(math.nan, math.nan, len(changes))
    error = float(np.std(changes, ddof=1)) / math.sqrt(len(changes)) if len(changes) > 1 else math.nan
    return PairedDifference(float(np.mean(changes)), error, len(changes))
