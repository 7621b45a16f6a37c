"""Where a loss curve has its minimum, how sure that is, and when the grid gives only a bound.

The interval is a bootstrap over seeds. With three seeds, drawing from a cell's own runs cannot reach 95%, so each draw
gives every cell fresh noise of the s.d. pooled over cells, and goes through the whole estimate again, the choice of the
best cell included. The pooled s.d. is itself uncertain: each draw takes its own from that distribution. A loss curve is
not a cubic either: how far the minimum slips under a polynomial of another degree, beyond what noise explains, corrects
the estimate and widens the interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from expertp.analysis.curves import Curve
from expertp.analysis.valley import Cells, Floats, Located, levels_of, locate

Edge = Literal["low", "high"]
Interval = tuple[float, float]
DRAWS = 1000
TAIL = 0.025


@dataclass(frozen=True)
class Noise:
    """How much the loss of a cell varies, pooled over cells.

    Args:
        sd: s.d. of one run's loss beside what its seed shifts in all cells of a curve; nan where nothing tells.
        dof: degrees of freedom that `sd` rests on.
        seed_sd: s.d. over seeds of the best cells as one sees it, shared shift included; the excess loss is measured
            against it.
    """

    sd: float
    dof: int
    seed_sd: float

    @property
    def is_known(self) -> bool:
        """Whether there is anything to make an interval of."""
        return self.dof > 0

    def sample(self, draws: int) -> Floats:
        """Return s.d.s that could be the true one, sd sqrt(dof / chi^2_dof): the same ones for all curves it is of."""
        return self.sd * np.sqrt(self.dof / np.random.default_rng(0).chisquare(self.dof, draws))


@dataclass(frozen=True, eq=False)
class Optimum:
    """The minimum of a loss curve.

    Args:
        log2_value: where; on the grid's edge it is the edge's value, and only a bound.
        ci: 95% interval; infinite on the side of an edge, nan where there is no noise estimate.
        loss: the fitted loss there.
        edge: the side of the grid on which the minimum lies, or None.
        curvature: second derivative of the loss there, nats per octave squared; nan without a fit.
        draws: optima of the bootstrap draws [draws]; empty where there is no noise estimate.
        draws_low: lower bounds of the same: equal to it where cells lie on both sides, -inf at the grid's lower edge.
        draws_high: upper bounds, likewise; next to a diverged cell that cell's value.
    """

    log2_value: float
    ci: Interval
    loss: float
    edge: Edge | None
    curvature: float
    draws: Floats
    draws_low: Floats
    draws_high: Floats


def interval(low: Floats, high: Floats) -> Interval:
    """Return the 95% percentile interval of draws that are known between two bounds; nan where there are none.

    >>> interval(np.array([-np.inf, 1.0, 2.0]), np.array([0.5, 1.0, 2.0]))
    (-inf, 2.0)
    """
    if not low.size:
        return math.nan, math.nan
    # Outward neighbours instead of interpolation, which makes nan of infinite bounds.
    return float(np.quantile(low, TAIL, method="lower")), float(np.quantile(high, 1 - TAIL, method="higher"))


def pooled_noise(curves: Sequence[Curve]) -> Noise:
    """Return the noise of a run's loss, pooled over the best cell of each curve and the two next to it.

    A seed fixes init and data order, so it shifts all cells of a curve alike; that moves no optimum, and `sd` is what
    remains beside it: sd^2 = sum (loss - mean of the cell - mean of the seed + mean)^2 / ((cells - 1)(seeds - 1)).
    Farther cells are left out because noise grows towards divergence; for the same reason `seed_sd` is that of the best
    cells alone.
    """
    squares = dof = seed_squares = seed_dof = 0.0
    for curve in curves:
        losses_VS = _cells_for_noise(curve)
        n_cells, n_seeds = losses_VS.shape
        if n_cells == 0 or n_seeds < 2:
            continue
        in_cell = losses_VS - losses_VS.mean(1, keepdims=True)
        best = in_cell[int(losses_VS.mean(1).argmin())]
        seed_squares += float((best**2).sum())
        seed_dof += n_seeds - 1
        squares += float(((in_cell - in_cell.mean(0)) ** 2).sum())
        dof += (n_cells - 1) * (n_seeds - 1)
    if not dof:
        return Noise(math.nan, 0, math.sqrt(seed_squares / seed_dof) if seed_dof else math.nan)
    return Noise(math.sqrt(squares / dof), int(dof), math.sqrt(seed_squares / seed_dof))


def _cells_for_noise(curve: Curve) -> Floats:
    """Return the losses [cell, seed] round the best cell, those of which every seed has finished."""
    medians = np.array(curve.medians)
    finite = np.flatnonzero(np.isfinite(medians))
    if not finite.size:
        return np.empty((0, 0))
    best = int(np.argmin(medians[finite]))
    losses_VS: Floats = np.array(curve.losses)[finite[max(0, best - 1) : best + 2]]
    return np.asarray(losses_VS[np.isfinite(losses_VS).all(1)])


def estimate_optimum(curve: Curve, noise: Noise, draws: int = DRAWS, seed: int = 0) -> Optimum | None:
    """Return the minimum of a curve with its 95% interval; None where no cell has a finite loss."""
    fitted = fit_curve(curve, noise, draws, seed)
    return None if fitted is None else fitted.optimum


@dataclass(frozen=True, eq=False)
class FittedCurve:
    """A curve, versions of it as they could have come out with other seeds, and the minima of all.

    Args:
        cells: the curve.
        found: its minimum.
        levels: of the draws [draws, V].
        drawn: their minima.
        model_error: s.d. of the minimum that the choice of the polynomial decides, octaves.
    """

    cells: Cells
    found: Located
    levels: Floats
    drawn: Located
    model_error: float

    @property
    def optimum(self) -> Optimum:
        """The minimum and its interval."""
        low, high = float(self.found.low[0]), float(self.found.high[0])
        return Optimum(
            log2_value=float(self.found.value[0]),
            ci=interval(self.drawn.low, self.drawn.high),
            loss=float(self.found.loss[0]),
            edge="low" if low == -math.inf else "high" if high == math.inf else None,
            curvature=float(self.found.curvature[0]),
            draws=self.drawn.value,
            draws_low=self.drawn.low,
            draws_high=self.drawn.high,
        )


def fit_curve(curve: Curve, noise: Noise, draws: int = DRAWS, seed: int = 0) -> FittedCurve | None:
    """Fit a curve and its bootstrap draws; None where no cell has a finite loss.

    The part of the slip that noise does not explain, s (1 - var(s) / s^2) if that is positive, counts as the s.d. of
    the fit's own error. With five cells or more, where the other fit is of the higher degree, the truth lies about
    between the two, so the minimum is moved half-way.
    """
    cells = Cells.of(curve)
    if cells is None:
        return None
    levels = _drawn_levels(cells, noise, draws, seed)
    found, drawn = locate(cells, cells.levels[None]), locate(cells, levels)
    slip, slips = float(found.slip[0]), drawn.slip[np.isfinite(drawn.slip)]
    variance = float(np.var(slips)) if slips.size else 0.0
    if not slip**2 > variance:
        return FittedCurve(cells, found, levels, drawn, model_error=0.0)
    unexplained = slip - variance / slip
    shift = unexplained / 2 if found.can_correct[0] else 0.0
    error = abs(unexplained) * np.random.default_rng((seed, 2)).standard_normal(drawn.value.size)
    return FittedCurve(cells, found.moved(np.array([shift])), levels, drawn.moved(shift + error), abs(unexplained))


def _drawn_levels(cells: Cells, noise: Noise, draws: int, seed: int) -> Floats:
    """Return levels [draws, V] as they could have come out with other seeds; no draw where noise is not known."""
    if not noise.is_known:
        return np.empty((0, cells.x.size))
    fresh = np.random.default_rng((seed, 1)).standard_normal((draws, *cells.losses.shape))
    fresh[:, np.isnan(cells.losses)] = np.nan
    return cells.levels + noise.sample(draws)[:, None] * levels_of(fresh)
