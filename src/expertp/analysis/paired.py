"""The difference of two losses over the same seeds, and whether chance explains it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Two-sided 95% points of Student's t for 2, 3, ... seeds; the last for all larger numbers.
STUDENT_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


@dataclass(frozen=True)
class Change:
    """Mean of a difference over seeds; nan where a run has diverged, since the lucky ones would flatter.

    Args:
        mean: over the seeds that both have.
        error: its standard error; nan with one seed.
        n: how many seeds these are.
    """

    mean: float
    error: float
    n: int

    @property
    def half_width(self) -> float:
        """Half of its 95% interval: what chance exceeds in one of twenty cases, up or down."""
        return STUDENT_95[min(max(self.n, 2), len(STUDENT_95) + 1) - 2] * self.error

    @property
    def is_lower(self) -> bool:
        """Whether the first is lower by more than chance explains."""
        return self.mean < -self.half_width

    @property
    def is_higher(self) -> bool:
        """Whether the first is higher by more than chance explains."""
        return self.mean > self.half_width

    def is_at_most(self, bound: float) -> bool | None:
        """Answer whether the difference is at most so large; None where its 95% interval has both."""
        if self.mean + self.half_width <= bound:
            return True
        return False if self.mean - self.half_width > bound else None

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "unknown, a run has diverged"
        return f"{self.mean:+.4f} (one seed)" if math.isnan(self.error) else f"{self.mean:+.4f} ± {self.error:.4f}"


def paired(one: Sequence[float], other: Sequence[float]) -> Change:
    """Return one minus other, seed by seed; inf is a diverged run, nan a missing one.

    >>> print(paired([3.0, 3.2], [2.9, 3.0]))
    +0.1500 ± 0.0500
    >>> print(paired([3.0, math.inf], [2.9, 3.0]))
    unknown, a run has diverged
    """
    changes = [a - b for a, b in zip(one, other, strict=True) if not (math.isnan(a) or math.isnan(b))]
    if not changes or math.inf in (*one, *other):
        return Change(math.nan, math.nan, len(changes))
    error = float(np.std(changes, ddof=1)) / math.sqrt(len(changes)) if len(changes) > 1 else math.nan
    return Change(float(np.mean(changes)), error, len(changes))
