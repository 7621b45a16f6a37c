"""The runs that would decide an INCONCLUSIVE verdict; `expertp sweep --refine` trains them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from expertp.analysis.curves import Curve
from expertp.analysis.optimum import FittedCurve, Optimum
from expertp.study.cells import Size

# Smallest spacing of a refined grid, octaves; a finer one would resolve noise rather than the curve.
FINEST = 0.25


@dataclass(frozen=True)
class Remedy:
    """Runs that would decide a verdict.

    Args:
        kind: a wider grid, a finer grid, more seeds, or only the missing runs.
        values: values to add to the grid, log2.
        seeds: seeds to add.
        runs: number of missing runs, for `kind="runs"`.
    """

    kind: Literal["wider", "finer", "seeds", "runs"]
    values: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    runs: int = 0


def wider_grid(curves: Sequence[Curve], optima: Mapping[Size, Optimum], is_open: bool = False) -> tuple[Remedy, ...]:
    """Return two more values beyond each end of the grid that an optimum may lie beyond; empty where there is none.

    With `is_open`, both ends are extended.
    """
    grid = curves[0].log2_values
    low = is_open or any(each.edge == "low" or each.at.low == -math.inf for each in optima.values())
    high = is_open or any(each.edge == "high" or each.at.high == math.inf for each in optima.values())
    # Where all runs of the smallest size diverge, only smaller values can help.
    low = low or curves[0].size not in optima
    below, above = (grid[1] - grid[0], grid[-1] - grid[-2]) if len(grid) > 1 else (1.0, 1.0)
    values = [grid[0] - 2 * below, grid[0] - below] if low else []
    values += [grid[-1] + above, grid[-1] + 2 * above] if high else []
    return (Remedy("wider", tuple(values)),) if values else ()


def narrower_interval(curves: Sequence[Curve], fitted: Mapping[Size, FittedCurve], factor: float) -> tuple[Remedy, ...]:
    """Return remedies that narrow intervals by a factor: more seeds, and more points where the fit is uncertain.

    An interval shrinks as 1 / sqrt(seeds). One step at most triples the seeds.
    """
    remedies = []
    values = sorted({value for fit in fitted.values() if _is_fit_uncertain(fit) for value in _midpoints(fit)})
    if values:
        remedies.append(Remedy("finer", tuple(values)))
    seeds, n = curves[0].seeds, curves[0].n_seeds
    more = min(max(math.ceil(n * (factor**2 - 1)), 1), max(2 * n, 2))
    first = max(seeds, default=-1) + 1
    return (*remedies, Remedy("seeds", seeds=tuple(range(first, first + more))))


def _is_fit_uncertain(fit: FittedCurve) -> bool:
    """Whether the optimum is uncertain because points are too far apart rather than because of noise."""
    at = fit.optimum.at
    is_beside_divergence = bool(fit.found.low[0] != fit.found.high[0])
    return is_beside_divergence or 2 * fit.model_error > (at.high - at.low) / 4


def _midpoints(fit: FittedCurve) -> list[float]:
    """Return the midpoints between the best point and its neighbours."""
    place = fit.found.point[0]
    best, sides = float(fit.points.x[place]), (float(fit.points.left[place]), float(fit.points.right[place]))
    return [(best + side) / 2 for side in sides if 2 * FINEST <= abs(side - best) < math.inf]
