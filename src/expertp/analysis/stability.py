"""Is training less stable in one group than in another? The unit is the seed: its runs fail together.

Two curves are compared at the same octaves above the best value of each, so that an optimum that has moved is not
mistaken for a loss of stability. Few seeds are unstable, so the test is an exact one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from expertp.analysis.curves import Curve

# Nats above the lowest median loss of its curve from which on a run counts as unstable.
UNSTABLE = 0.5
# One-sided level of the test, and of the bound on a share.
LEVEL = 0.05
# Share of unstable seeds below which training is stable; eight stable seeds show it.
STABLE = 1 / 3


@dataclass(frozen=True)
class UnstableSeeds:
    """How many of some seeds are unstable."""

    unstable: int
    seeds: int

    @property
    def most(self) -> float:
        """Upper 95% bound of the share that is unstable (Clopper and Pearson 1934).

        >>> round(UnstableSeeds(0, 8).most, 3), round(UnstableSeeds(2, 4).most, 3), UnstableSeeds(4, 4).most
        (0.312, 0.902, 1.0)
        """
        from scipy.special import betaincinv

        return (
            1.0
            if self.unstable == self.seeds
            else float(betaincinv(self.unstable + 1, self.seeds - self.unstable, 1 - LEVEL))
        )

    def are_more_than(self, other: UnstableSeeds) -> bool | None:
        """Return whether a larger share is unstable than of other seeds, by Fisher's exact test (one-sided, 5%).

        False needs more than a test that shows nothing: the upper bound of the share must lie below `STABLE`.

        >>> [UnstableSeeds(*one).are_more_than(UnstableSeeds(0, 8)) for one in ((4, 8), (2, 8), (0, 8))]
        [True, None, False]
        """
        from scipy.stats import fisher_exact

        table = [[each.unstable, each.seeds - each.unstable] for each in (self, other)]
        if float(fisher_exact(table, alternative="greater").pvalue) <= LEVEL:
            return True
        return False if self.most < STABLE else None

    def __str__(self) -> str:
        return f"{self.unstable} of {self.seeds}"


def unstable_runs(curve: Curve) -> dict[float, tuple[bool | None, ...]]:
    """Return by value and seed whether a run is unstable: it diverges, or ends far above the lowest median.

    None where there is no result.
    """
    best = curve.medians[curve.best_place]

    def is_unstable(loss: float) -> bool | None:
        return None if math.isnan(loss) else loss == math.inf or loss > best + UNSTABLE

    return {
        value: tuple(map(is_unstable, losses)) for value, losses in zip(curve.log2_values, curve.losses, strict=True)
    }


def common_octaves(curves: Iterable[Curve]) -> float:
    """Return how many octaves above its best value the grid of every curve covers."""
    return min(each.log2_values[-1] - each.best_value for each in curves)


def unstable_seeds(curve: Curve, octaves: float) -> UnstableSeeds:
    """Return how many seeds have an unstable run above the best value of a curve, up to some octaves above it.

    A curve that has no best value, since runs diverge at every value, counts whole.
    """
    best = curve.best_value
    has_best = math.isfinite(curve.medians[curve.best_place])
    above = [
        runs for value, runs in unstable_runs(curve).items() if not has_best or best < value <= best + octaves + 1e-9
    ]
    by_seed = [[run for run in runs if run is not None] for runs in zip(*above, strict=True)]
    known = [any(runs) for runs in by_seed if runs]
    return UnstableSeeds(sum(known), len(known))
