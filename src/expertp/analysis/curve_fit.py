"""A loss curve near the value of its zero-shot runs: its minimum, what zero-shot costs, how sensitive the loss is.

    loss = shift of the seed + p(x) + noise,    p(x) = b_1 x + b_2 x^2 + ... + b_5 x^5

x is the distance in octaves from the zero-shot value. b_1 and b_2 are free. Higher coefficients have a normal prior
around 0 whose s.d. is a share of b_2 (`HIGHER`): near its minimum a loss curve is a parabola with some skew, and a few
noisy values must not bend it further. All values within `WINDOW` octaves enter the fit, the same ones at every size,
except where the minimum lies at the end of this window: there, the window follows it (`fit_curve`).
The posterior of the coefficients is normal given the s.d. of the noise, which is itself uncertain. Intervals come from
draws of both.

The cost of zero-shot, p(0) - min p, cannot be negative, and percentiles of a quantity at its bound are biased. Its
interval is therefore computed with the sign of the minimum's place, and folded afterwards.

A value at which a run was stopped is not fitted, since its final loss is unknown. But the run was stopped because it
would not have come below zero-shot: the next such value beyond the ends of the fitted ones is a wall, and draws that
fall below zero-shot there are left out.

Shapes: n runs, K coefficients, D draws, G places.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from expertp.analysis.curves import Curve
from expertp.util.statistics import TAIL, Estimate

Floats = NDArray[np.float64]
Edge = Literal["low", "high"]
# Octaves on both sides of the zero-shot value that are fitted, and those from which noise and a first curvature come.
WINDOW, NEAR = 2.0, 1.0
# S.d. of b_3, b_4 and b_5 as shares of b_2; docs/verdict.md has the shares of recorded curves.
HIGHER = (0.6, 0.25, 0.1)
DEGREE = 2 + len(HIGHER)
# A parabola needs three values.
FEWEST_VALUES = 3
DRAWS = 4000
# Number of draws above all walls below which the walls contradict the fitted values, and are not used.
FEWEST_DRAWS = 40
# Places per octave at which drawn curves are evaluated.
FINE = 32
# Stands in for an unknown noise, so that a curve of one seed has a minimum, without an interval.
SMALL_SD = 1e-4
# Smallest noise, nats, and smallest curvature, nats per octave squared: those of exact curves would not be invertible.
LEAST_SD, LEAST_CURVATURE = 1e-6, 1e-4


@dataclass(frozen=True)
class Noise:
    """How much the loss of a run varies around its curve, without the shift that a seed causes at all values.

    Args:
        sd: s.d. of one run; nan if unknown.
        dof: degrees of freedom of `sd`.
    """

    sd: float
    dof: int

    @property
    def is_known(self) -> bool:
        """Whether intervals can be computed."""
        return self.dof > 0


def pooled_noise(curves: Sequence[Curve]) -> Noise:
    """Return the noise of a run, pooled over curves.

    A seed fixes init and data order, so it shifts all values of a curve alike; this moves no minimum. What is left
    after the means of seeds and values is noise. Values farther than `NEAR` octaves from the zero-shot value are left
    out, because noise grows towards divergence.
    """
    squares, dof = 0.0, 0
    for curve in curves:
        near = [value for value in finite_values(curve) if abs(value - curve.centre) <= NEAR]
        x, seed, loss = _runs(curve, near)
        means = np.concatenate([x[:, None] == np.unique(x), seed[:, None] == np.unique(seed)], axis=1).astype(float)
        if loss.size:
            solution, _, rank, _ = np.linalg.lstsq(means, loss, rcond=None)
            squares += float(((loss - means @ solution) ** 2).sum())
            dof += int(loss.size - rank)
    return Noise(max(math.sqrt(squares / dof), LEAST_SD), dof) if dof else Noise(math.nan, 0)


def finite_values(curve: Curve) -> tuple[float, ...]:
    """Return the values of a curve at which runs have finished, and none has diverged or was stopped, log2."""
    has_loss = [any(map(math.isfinite, losses)) and math.inf not in losses for losses in curve.losses]
    return tuple(value for value, is_known in zip(curve.log2_values, has_loss, strict=True) if is_known)


def _runs(curve: Curve, values: Collection[float]) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Return the finished runs of a curve at some values: log2 value, seed and loss [n]."""
    found = [
        (value, seed, loss)
        for value, losses in zip(curve.log2_values, curve.losses, strict=True)
        for seed, loss in zip(curve.seeds, losses, strict=True)
        if value in values and math.isfinite(loss)
    ]
    x, seeds, losses = zip(*found, strict=True) if found else ((), (), ())
    return np.array(x, float), np.array(seeds, np.int64), np.array(losses, float)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A number of the fitted curve and its draws [D]; no draws where the noise is unknown."""

    value: float
    draws: Floats

    def estimate(self, tail: float = TAIL) -> Estimate:
        """Return the number with its interval, which leaves out `tail` of the draws on each side."""
        return Estimate(self.value, *interval(self.draws, self.draws, tail))

    def __add__(self, other: Drawn) -> Drawn:
        """Return the sum with a number of another curve; without draws where one of them has none."""
        has_draws = self.draws.size and other.draws.size
        return Drawn(self.value + other.value, self.draws + other.draws if has_draws else np.empty(0))

    def __sub__(self, other: Drawn) -> Drawn:
        """Return the difference to a number of another curve; without draws where one of them has none."""
        has_draws = self.draws.size and other.draws.size
        return Drawn(self.value - other.value, self.draws - other.draws if has_draws else np.empty(0))


@dataclass(frozen=True, eq=False)
class CurveFit:
    """A fitted loss curve.

    Args:
        curve: the curve.
        values: the values that were fitted, log2.
        optimum: place of the minimum between the smallest and the largest of these, log2.
        side: for the minimum and its draws: -1 or 1 where it lies on the lower or upper end of the values, so that it
            is only a bound; else 0.
        cost: loss of zero-shot minus the minimum, nats; a lower bound where the minimum is only a bound.
        sensitivity: rise of the loss one octave from the minimum, mean of both directions, nats.
        curvature: b_2, nats per octave squared.
        loss: the loss at the minimum, mean over seeds.
    """

    curve: Curve
    values: tuple[float, ...]
    optimum: Drawn
    side: Drawn
    cost: Drawn
    sensitivity: Drawn
    curvature: float
    loss: float

    @property
    def edge(self) -> Edge | None:
        """The end of the values on which the minimum lies, or None."""
        return None if self.side.value == 0 else "low" if self.side.value < 0 else "high"

    def bounds(self) -> tuple[Floats, Floats]:
        """Return lower and upper bounds of the drawn minima [D]: infinite beyond the ends of the values."""
        at, side = self.optimum.draws, self.side.draws
        return np.where(side < 0, -math.inf, at), np.where(side > 0, math.inf, at)

    def optimum_estimate(self, tail: float = TAIL) -> Estimate:
        """Return the place of the minimum; an end of its interval is infinite where the minimum may lie beyond."""
        return Estimate(self.optimum.value, *interval(*self.bounds(), tail))

    def shift_from(self, other: CurveFit, tail: float = TAIL) -> Estimate:
        """Return octaves from the minimum of another curve to this one's; an end is infinite where one is a bound."""
        if self is other:
            return Estimate(0.0, 0.0, 0.0)
        (low, high), (other_low, other_high) = self.bounds(), other.bounds()
        ends = interval(low - other_high, high - other_low, tail)
        return Estimate(self.optimum.value - other.optimum.value, *ends)

    def cost_estimate(self, tail: float = TAIL) -> Estimate:
        """Return the cost of zero-shot; the upper end is infinite where the minimum may lie beyond the values."""
        if not self.cost.draws.size:
            return Estimate(self.cost.value, math.nan, math.nan)
        away = np.where(self.optimum.draws < self.curve.centre, -1.0, 1.0) * self.cost.draws
        low, high = interval(away, away, tail)
        # Beyond the ends of the values the loss may fall further.
        side = self.side.draws
        ends = interval(np.where(side < 0, -math.inf, away), np.where(side > 0, math.inf, away), tail)
        return Estimate(self.cost.value, 0.0 if low <= 0 <= high else min(abs(low), abs(high)), max(map(abs, ends)))


def interval(low: Floats, high: Floats, tail: float = TAIL) -> tuple[float, float]:
    """Return the percentile interval of draws that are known up to two bounds; nan without draws.

    >>> interval(np.array([-np.inf, 1.0, 2.0]), np.array([0.5, 1.0, 2.0]))
    (-inf, 2.0)
    """
    if not low.size:
        return math.nan, math.nan
    # The outer neighbour instead of an interpolation, which would turn infinite bounds into nan.
    return float(np.quantile(low, tail, method="lower")), float(np.quantile(high, 1 - tail, method="higher"))


def fit_curve(curve: Curve, noise: Noise, allowed: Collection[float] | None = None, seed: int = 0) -> CurveFit | None:
    """Fit a curve around its zero-shot value.

    Args:
        curve: the curve.
        noise: noise of a run.
        allowed: values that may be fitted; by default all at which runs have finished.
        seed: seed of the draws; curves that are compared need different ones.

    Returns:
        The fit; None where fewer than three values are known, or none near the zero-shot value.

    Where the minimum lies on the end of the window and the grid goes on, the window moves towards it, value by value. A
    window that covers the minima of all sizes would ask the polynomial for more octaves than it describes. The price is
    that the misfit of such a size no longer cancels against that of the base; its cost is that of two octaves or more.
    """
    known = [value for value in finite_values(curve) if allowed is None or value in allowed]
    centre, tried = curve.centre, set[float]()
    while True:
        fit = _fit_around(curve, noise, known, centre, seed)
        tried.add(centre)
        beyond = [value for value in known if fit is not None and fit.side.value * (value - centre) > 0]
        following = min(beyond, key=lambda value: abs(value - centre), default=centre)
        if fit is None or following in tried or curve.centre not in known:
            return fit
        centre = following


def _fit_around(curve: Curve, noise: Noise, known: Sequence[float], centre: float, seed: int) -> CurveFit | None:
    """Fit the known values within the window around a centre."""
    values = tuple(value for value in known if abs(value - centre) <= WINDOW)
    if len(values) < FEWEST_VALUES:
        return None
    at, seeds, loss = _runs(curve, values)
    x, rng, sd = at - centre, np.random.default_rng(seed), noise.sd if noise.is_known else SMALL_SD
    member_nS = (seeds[:, None] == np.unique(seeds)).astype(float)

    def without_shifts(columns: Floats) -> Floats:
        """Subtract the means of seeds: the shift of a seed is free."""
        return np.asarray(columns - member_nS @ (member_nS.T @ columns / member_nS.sum(0)[:, None]))

    basis_nK = _powers(x)
    first = _Model(without_shifts(basis_nK), without_shifts(loss[:, None])[:, 0], _curvature(x, member_nS, loss, sd))
    model = first.refined(sd)
    (mean_K,) = model.posterior(np.array([sd]), np.zeros((1, DEGREE)))
    draws_DK = np.empty((0, DEGREE))
    if noise.is_known:
        sds_D = noise.sd * np.sqrt(noise.dof / rng.chisquare(noise.dof, DRAWS))
        draws_DK = model.posterior(sds_D, rng.standard_normal((DRAWS, DEGREE)))
    # Where the window has moved away from the zero-shot value, the loss there is compared with that at the centre.
    is_inside = curve.centre in values
    step, n_pairs = (0.0, 0) if is_inside else _difference(curve, curve.centre, centre)
    step_sd = sd * math.sqrt(2 / n_pairs) if n_pairs else 0.0
    zero = curve.centre - centre if is_inside else 0.0
    low, high = values[0], values[-1]
    if noise.is_known:
        walls = curve.stopped_values
        low = max((wall for wall in walls if centre - WINDOW <= wall < low), default=low)
        high = min((wall for wall in walls if high < wall <= centre + WINDOW), default=high)
        is_above_D = _above(draws_DK, [wall - centre for wall in (low, high) if wall not in values], zero, step)
        if FEWEST_DRAWS <= is_above_D.sum() < DRAWS:
            draws_DK = draws_DK[rng.choice(np.flatnonzero(is_above_D), DRAWS)]
            mean_K = draws_DK.mean(0)
    places_G = np.linspace(low - centre, high - centre, round((high - low) * FINE) + 1)
    point, drawn = (_Numbers.of(each, places_G, zero) for each in (mean_K[None], draws_DK))
    return CurveFit(
        curve=curve,
        values=values,
        optimum=Drawn(float(point.at[0]) + centre, drawn.at + centre),
        side=Drawn(float(point.side[0]), drawn.side),
        cost=Drawn(
            max(float(point.cost[0]) + step, 0.0),
            np.maximum(drawn.cost + step + step_sd * rng.standard_normal(len(draws_DK)), 0.0),
        ),
        sensitivity=Drawn(float(point.rise[0]), drawn.rise),
        curvature=model.curvature,
        loss=float((loss - basis_nK @ mean_K).mean() + point.lowest[0]),
    )


def _powers(x: Floats) -> Floats:
    """Return x, x^2, ... [..., K]."""
    return np.stack([x**power for power in range(1, DEGREE + 1)], axis=-1)


def _difference(curve: Curve, value: float, other: float) -> tuple[float, int]:
    """Return the loss at a value minus that at another, mean over the seeds of both, and the number of these seeds."""
    losses = dict(zip(curve.log2_values, curve.losses, strict=True))
    unknown = [math.nan] * curve.n_seeds
    both = zip(losses.get(value, unknown), losses.get(other, unknown), strict=True)
    pairs = [one - two for one, two in both if not math.isnan(one - two)]
    return (float(np.mean(pairs)), len(pairs)) if pairs else (math.nan, 0)


def _above(draws_DK: Floats, walls: Sequence[float], zero: float, step: float) -> NDArray[np.bool_]:
    """Return which drawn curves lie above zero-shot at all walls [D]; `step` is added to their loss at zero-shot."""
    levels_D = draws_DK @ _powers(np.array(zero, float)) + step
    is_above = [draws_DK @ _powers(np.array(wall, float)) > levels_D for wall in walls]
    return np.asarray(np.all([np.full(len(draws_DK), True), *is_above], axis=0))


def _curvature(x: Floats, member_nS: Floats, loss: Floats, sd: float) -> float:
    """Return b_2 of a parabola through the values near the centre, or its s.d. if that is larger."""
    near = np.abs(x) <= NEAR
    if np.unique(x[near]).size < FEWEST_VALUES:
        near = np.full(x.shape, True)
    design = np.concatenate([x[near, None], x[near, None] ** 2, member_nS[near]], axis=1)
    inverse = np.linalg.pinv(design)
    return max(float((inverse @ loss[near])[1]), sd * float(np.linalg.norm(inverse[1])), LEAST_CURVATURE)


def _prior(curvature: float) -> Floats:
    """Return the prior precision of the coefficients [K, K]."""
    return np.diag([0.0, 0.0, *(1 / (share * curvature) ** 2 for share in HIGHER)])


def slope_sd(values: Sequence[float], n_seeds: int, centre: float, noise: Noise, curvature: float) -> float:
    """Return the s.d. with which the slope of a curve at its zero-shot value would be known.

    A design with a smaller one locates the minimum more exactly.

    >>> at = (-1.0, 0.0, 1.0)
    >>> noise = Noise(0.01, 20)
    >>> slope_sd(at, 4, 0.0, noise, 0.04) < slope_sd(at, 2, 0.0, noise, 0.04)
    True
    >>> slope_sd((-1.0, -0.5, 0.0, 0.5, 1.0), 2, 0.0, noise, 0.04) < slope_sd(at, 4, 0.0, noise, 0.04)
    True
    """
    powers = _powers(np.array([value for value in values if abs(value - centre) <= WINDOW]) - centre)
    powers = powers - powers.mean(0)
    precision = n_seeds * powers.T @ powers / noise.sd**2 + _prior(curvature)
    return math.sqrt(float(np.linalg.inv(precision)[0, 0]))


@dataclass(frozen=True, eq=False)
class _Model:
    """Powers of x and losses, both without the shifts of seeds, and the b_2 that scales the prior."""

    powers_nK: Floats
    losses_n: Floats
    curvature: float

    def refined(self, sd: float) -> _Model:
        """Return the model with the b_2 of its own fit, or that of the parabola where the fit has none."""
        (mean_K,) = self.posterior(np.array([sd]), np.zeros((1, DEGREE)))
        is_bent = mean_K[1] > LEAST_CURVATURE
        return _Model(self.powers_nK, self.losses_n, float(mean_K[1]) if is_bent else self.curvature)

    def posterior(self, sds_D: Floats, normal_DK: Floats) -> Floats:
        """Return the posterior mean for every s.d. of the noise, plus normal numbers with the posterior covariance."""
        precision_DKK = self.powers_nK.T @ self.powers_nK / sds_D[:, None, None] ** 2 + _prior(self.curvature)
        weighted_DK = (self.powers_nK.T @ self.losses_n)[None] / sds_D[:, None] ** 2
        factor_DKK = np.linalg.cholesky(precision_DKK)
        mean_DK = np.linalg.solve(precision_DKK, weighted_DK[..., None])[..., 0]
        return np.asarray(mean_DK + np.linalg.solve(factor_DKK.swapaxes(1, 2), normal_DK[..., None])[..., 0])


@dataclass(frozen=True, eq=False)
class _Numbers:
    """Numbers of polynomials [D]: place, side and level of the minimum, cost of zero-shot, rise beside the minimum."""

    at: Floats
    side: Floats
    lowest: Floats
    cost: Floats
    rise: Floats

    @classmethod
    def of(cls, coefficients_DK: Floats, places_G: Floats, zero: float) -> _Numbers:
        """Return the numbers of polynomials whose minima are looked for at some places."""
        levels_DG = coefficients_DK @ _powers(places_G).T
        lowest_at = levels_DG.argmin(1)
        inner = np.clip(lowest_at, 1, len(places_G) - 2)
        rows, spacing = np.arange(len(levels_DG)), places_G[1] - places_G[0]
        left, middle, right = (levels_DG[rows, inner + step] for step in (-1, 0, 1))
        with np.errstate(invalid="ignore", divide="ignore"):  # between places: the parabola through three of them
            offset = np.where(inner == lowest_at, (left - right) / (left - 2 * middle + right) / 2, 0.0)
        at = places_G[lowest_at] + spacing * np.clip(np.nan_to_num(offset), -0.5, 0.5)
        lowest = (_powers(at) * coefficients_DK).sum(1)
        beside = [(_powers(at + octave) * coefficients_DK).sum(1) - lowest for octave in (-1.0, 1.0)]
        return cls(
            at=at,
            side=(lowest_at == len(places_G) - 1) * 1.0 - (lowest_at == 0) * 1.0,
            lowest=lowest,
            cost=coefficients_DK @ _powers(np.array(zero, float)) - lowest,
            rise=np.asarray(sum(beside) / 2),
        )
