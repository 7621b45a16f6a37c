"""Are more runs unstable in one group than in another? Few are, so the test is an exact one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from expertp.analysis.curves import Curve

# Nats above the lowest median loss of its curve from which on a run counts as unstable.
UNSTABLE = 0.5
# One-sided level of the test, and of the bound on a share.
LEVEL = 0.05
# Share of unstable runs below which training is stable.
STABLE = 0.25


@dataclass(frozen=True)
class UnstableRuns:
    """How many of some runs are unstable."""

    unstable: int
    runs: int

    @property
    def most(self) -> float:
        """Upper 95% bound of the share that is unstable (Clopper and Pearson 1934).

        >>> round(UnstableRuns(0, 12).most, 3), round(UnstableRuns(2, 4).most, 3), UnstableRuns(4, 4).most
        (0.221, 0.902, 1.0)
        """
        from scipy.special import betaincinv

        return (
            1.0
            if self.unstable == self.runs
            else float(betaincinv(self.unstable + 1, self.runs - self.unstable, 1 - LEVEL))
        )

    def are_more_than(self, other: UnstableRuns) -> bool | None:
        """Return whether a larger share is unstable than of other runs, by Fisher's exact test (one-sided, 5%).

        False needs more than a test that shows nothing: the upper bound of the share must lie below a quarter.

        >>> [UnstableRuns(*one).are_more_than(UnstableRuns(0, 4)) for one in ((4, 4), (2, 4), (0, 12))]
        [True, None, False]
        """
        from scipy.stats import fisher_exact

        table = [[each.unstable, each.runs - each.unstable] for each in (self, other)]
        if float(fisher_exact(table, alternative="greater").pvalue) <= LEVEL:
            return True
        return False if self.most < STABLE else None

    def __str__(self) -> str:
        return f"{self.unstable} of {self.runs}"


def unstable_by_value(curve: Curve) -> dict[float, UnstableRuns]:
    """Return how many runs are unstable at each value of a curve: they diverge, or end far above its lowest median."""
    best = curve.medians[curve.best_place]
    known = {
        value: [loss for loss in losses if not math.isnan(loss)]
        for value, losses in zip(curve.log2_values, curve.losses, strict=True)
    }
    return {
        value: UnstableRuns(sum(loss == math.inf or loss > best + UNSTABLE for loss in losses), len(losses))
        for value, losses in known.items()
    }


def total(groups: Iterable[UnstableRuns]) -> UnstableRuns:
    """Return how many of all runs are unstable.

    >>> total([UnstableRuns(1, 4), UnstableRuns(2, 4)])
    UnstableRuns(unstable=3, runs=8)
    """
    every = list(groups)
    return UnstableRuns(sum(each.unstable for each in every), sum(each.runs for each in every))
