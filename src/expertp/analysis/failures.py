"""Do more runs fail in one group than in another? Few runs fail, so the test is an exact one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from expertp.analysis.curves import Curve

# Nats above the lowest median loss of its curve from which on a run has failed.
FAILED = 0.5
# One-sided level of the test, and of the bound on a share.
LEVEL = 0.05
# Share of failed runs below which training is stable.
STABLE = 0.25


@dataclass(frozen=True)
class Failures:
    """How many of some runs have failed."""

    failed: int
    runs: int

    @property
    def most(self) -> float:
        """Upper 95% bound of the share that fails (Clopper and Pearson 1934).

        >>> round(Failures(0, 12).most, 3), round(Failures(2, 4).most, 3), Failures(4, 4).most
        (0.221, 0.902, 1.0)
        """
        from scipy.special import betaincinv

        return (
            1.0 if self.failed == self.runs else float(betaincinv(self.failed + 1, self.runs - self.failed, 1 - LEVEL))
        )

    def are_more_than(self, other: Failures) -> bool | None:
        """Return whether a larger share fails than of other runs, by Fisher's exact test (one-sided, 5%).

        False needs more than a test that shows nothing: the upper bound of the share must lie below a quarter.

        >>> [Failures(*one).are_more_than(Failures(0, 4)) for one in ((4, 4), (2, 4), (0, 12))]
        [True, None, False]
        """
        from scipy.stats import fisher_exact

        table = [[each.failed, each.runs - each.failed] for each in (self, other)]
        if float(fisher_exact(table, alternative="greater").pvalue) <= LEVEL:
            return True
        return False if self.most < STABLE else None

    def __str__(self) -> str:
        return f"{self.failed} of {self.runs}"


def failures_by_value(curve: Curve) -> dict[float, Failures]:
    """Return how many runs fail at each value of a curve: they diverge, or end far above its lowest median loss."""
    best = curve.medians[curve.best_place]
    known = {
        value: [loss for loss in losses if not math.isnan(loss)]
        for value, losses in zip(curve.log2_values, curve.losses, strict=True)
    }
    return {
        value: Failures(sum(loss == math.inf or loss > best + FAILED for loss in losses), len(losses))
        for value, losses in known.items()
    }


def total(failures: Iterable[Failures]) -> Failures:
    """Return how many of all runs have failed.

    >>> total([Failures(1, 4), Failures(2, 4)])
    Failures(failed=3, runs=8)
    """
    every = list(failures)
    return Failures(sum(each.failed for each in every), sum(each.runs for each in every))
