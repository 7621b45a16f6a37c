"""The minimum of a loss curve with its 95% interval, or a bound where the minimum lies on the edge of the grid.

The interval is a bootstrap over seeds. With three seeds, resampling a point's own runs cannot reach 95%. Instead, each
draw adds fresh noise to every point, with the standard deviation pooled over points, and repeats the whole estimate
including the choice of the best point. The pooled standard deviation is itself uncertain, so each draw samples it. A
loss curve is not exactly cubic either: the shift of the minimum under a polynomial of another degree, beyond what noise
explains, corrects the estimate and widens the interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from expertp.analysis.curves import Curve
from expertp.analysis.local_fit import Floats, Minima, Points, levels_of, locate
from expertp.util.statistics import TAIL, Estimate

Edge = Literal["low", "high"]
DRAWS = 1000


@dataclass(frozen=True)
class Noise:
    """How much the loss of a point varies, pooled over points.

    Args:
        sd: s.d. of one run's loss, without the shift that a seed causes at all points of a curve; nan if unknown.
        dof: degrees of freedom of `sd`.
        seed_sd: s.d. over seeds at the best points, shared shift included; the limit of the excess loss uses it.
    """

    sd: float
    dof: int
    seed_sd: float

    @property
    def is_known(self) -> bool:
        """Whether intervals can be computed."""
        return self.dof > 0

    def sample(self, draws: int) -> Floats:
        """Return samples of the true s.d., sd sqrt(dof / chi^2_dof), the same for all curves that share the noise."""
        return self.sd * np.sqrt(self.dof / np.random.default_rng(0).chisquare(self.dof, draws))


@dataclass(frozen=True, eq=False)
class Optimum:
    """The minimum of a loss curve.

    Args:
        at: log2 of the hyperparameter there. On the grid's edge it is the edge's value and only a bound: the interval
            is infinite on that side. The interval is nan where there is no noise estimate.
        loss: the fitted loss there.
        edge: the side of the grid on which the minimum lies, or None.
        curvature: second derivative of the loss there, nats per octave squared; nan without a fit.
        draws_low: lower bounds of the minima of the bootstrap draws [draws]: the minimum itself where points lie on
            both sides, -inf at the grid's lower edge; empty where there is no noise estimate.
        draws_high: upper bounds, likewise; next to a diverged point, that point's value.
    """

    at: Estimate
    loss: float
    edge: Edge | None
    curvature: float
    draws_low: Floats
    draws_high: Floats


def interval(low: Floats, high: Floats) -> tuple[float, float]:
    """Return the 95% percentile interval of draws that are known up to two bounds; nan without draws.

    >>> interval(np.array([-np.inf, 1.0, 2.0]), np.array([0.5, 1.0, 2.0]))
    (-inf, 2.0)
    """
    if not low.size:
        return math.nan, math.nan
    # The outer neighbour instead of an interpolation, which would turn infinite bounds into nan.
    return float(np.quantile(low, TAIL, method="lower")), float(np.quantile(high, 1 - TAIL, method="higher"))


def pooled_noise(curves: Sequence[Curve]) -> Noise:
    """Return the noise of a run's loss, pooled over the best point of each curve and the two next to it.

    A seed fixes init and data order, so it shifts all points of a curve alike. This shift moves no optimum, and `sd`
    leaves it out: sd^2 = sum (loss - mean of the point - mean of the seed + mean)^2 / ((points - 1)(seeds - 1)).
    Farther points are left out because noise grows towards divergence; `seed_sd` uses the best points only, for the
    same reason.
    """
    squares = dof = seed_squares = seed_dof = 0.0
    for curve in curves:
        losses_VS = _points_for_noise(curve)
        n_points, n_seeds = losses_VS.shape
        if n_points == 0 or n_seeds < 2:
            continue
        off_VS = losses_VS - losses_VS.mean(1, keepdims=True)
        best = off_VS[int(losses_VS.mean(1).argmin())]
        seed_squares += float((best**2).sum())
        seed_dof += n_seeds - 1
        squares += float(((off_VS - off_VS.mean(0)) ** 2).sum())
        dof += (n_points - 1) * (n_seeds - 1)
    if not dof:
        return Noise(math.nan, 0, math.sqrt(seed_squares / seed_dof) if seed_dof else math.nan)
    return Noise(math.sqrt(squares / dof), int(dof), math.sqrt(seed_squares / seed_dof))


def _points_for_noise(curve: Curve) -> Floats:
    """Return the losses [point, seed] of the best point and its neighbours, where every seed has finished."""
    medians = np.array(curve.medians)
    finite = np.flatnonzero(np.isfinite(medians))
    if not finite.size:
        return np.empty((0, 0))
    best = int(np.argmin(medians[finite]))
    losses_VS: Floats = np.array(curve.losses, float)[finite[max(0, best - 1) : best + 2]]
    return np.asarray(losses_VS[np.isfinite(losses_VS).all(1)])


def estimate_optimum(curve: Curve, noise: Noise, draws: int = DRAWS, seed: int = 0) -> Optimum | None:
    """Return the minimum of a curve with its 95% interval; None where no point has a finite loss."""
    fitted = fit_curve(curve, noise, draws, seed)
    return None if fitted is None else fitted.optimum


@dataclass(frozen=True, eq=False)
class FittedCurve:
    """A curve with its minimum, and bootstrap draws of the curve with theirs.

    Args:
        points: the points of the curve.
        found: the minimum.
        levels: levels of the draws [draws, V].
        drawn: minima of the draws.
        model_error: s.d. of the minimum due to the choice of the polynomial, octaves.
    """

    points: Points
    found: Minima
    levels: Floats
    drawn: Minima
    model_error: float

    @property
    def optimum(self) -> Optimum:
        """The minimum and its interval."""
        low, high = float(self.found.low[0]), float(self.found.high[0])
        return Optimum(
            at=Estimate(float(self.found.value[0]), *interval(self.drawn.low, self.drawn.high)),
            loss=float(self.found.loss[0]),
            edge="low" if low == -math.inf else "high" if high == math.inf else None,
            curvature=float(self.found.curvature[0]),
            draws_low=self.drawn.low,
            draws_high=self.drawn.high,
        )


def fit_curve(curve: Curve, noise: Noise, draws: int = DRAWS, seed: int = 0) -> FittedCurve | None:
    """Fit a curve and its bootstrap draws; None where no point has a finite loss.

    The part of the slip s that noise does not explain, s (1 - var(s) / s^2) if positive, is taken as the s.d. of the
    fit's own error. With five points or more the other polynomial has the higher degree and the true minimum lies
    about half-way between the two, so the minimum is moved there.
    """
    points = Points.of(curve)
    if points is None:
        return None
    levels = _drawn_levels(points, noise, draws, seed)
    found, drawn = locate(points, points.levels[None]), locate(points, levels)
    slip, slips = float(found.slip[0]), drawn.slip[np.isfinite(drawn.slip)]
    variance = float(np.var(slips)) if slips.size else 0.0
    if not slip**2 > variance:
        return FittedCurve(points, found, levels, drawn, model_error=0.0)
    unexplained = slip - variance / slip
    shift = unexplained / 2 if found.can_correct[0] else 0.0
    error = abs(unexplained) * np.random.default_rng((seed, 2)).standard_normal(drawn.value.size)
    return FittedCurve(points, found.moved(np.array([shift])), levels, drawn.moved(shift + error), abs(unexplained))


def _drawn_levels(points: Points, noise: Noise, draws: int, seed: int) -> Floats:
    """Return bootstrap draws [draws, V] of the levels; none where the noise is unknown."""
    if not noise.is_known:
        return np.empty((0, points.x.size))
    fresh = np.random.default_rng((seed, 1)).standard_normal((draws, *points.losses.shape))
    fresh[:, np.isnan(points.losses)] = np.nan
    return points.levels + noise.sample(draws)[:, None] * levels_of(fresh)
