"""Polynomial fits of a loss curve around its best point.

The loss is fitted over log2 of the hyperparameter by a cubic polynomial: the loss rises more steeply towards large
learning rates, and a quadratic would place every optimum too low. The fit uses a window of points around the best one;
points far away, or far above their neighbours, are left out. Many versions of one curve are fitted at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from expertp.analysis.curves import Curve

Floats = NDArray[np.float64]
# Points within WINDOW octaves of the best one are fitted, with weights that fall to 0 at REACH octaves.
WINDOW, REACH = 2.0, 3.0
# A point is left out where its rise per octave squared exceeds STEEP times that of all points within NEAR octaves.
STEEP, NEAR = 2.0, 1.0


@dataclass(frozen=True, eq=False)
class Points:
    """The points of a curve that have a finite loss [V], and their neighbours in the grid.

    Args:
        x: log2 values.
        losses: per point and seed [V, S]; nan where there is no result.
        levels: per point, `levels_of(losses)`.
        left: value of the next lower point, -inf where the grid ends.
        right: value of the next higher point, inf where the grid ends.
        wall_left: whether the next lower point has diverged.
        wall_right: whether the next higher point has diverged.
    """

    x: Floats
    losses: Floats
    levels: Floats
    left: Floats
    right: Floats
    wall_left: NDArray[np.bool_]
    wall_right: NDArray[np.bool_]

    @classmethod
    def of(cls, curve: Curve) -> Points | None:
        """Return the points of a curve; None where no point has a finite loss."""
        medians, x = np.array(curve.medians), np.array(curve.log2_values, float)
        # Values and seeds without any result are left out; neighbours are the next values that have results.
        has_result = ~np.isnan(medians)
        medians, x, losses = medians[has_result], x[has_result], np.array(curve.losses)[has_result]
        losses = losses[:, ~np.isnan(losses).all(0)]
        finite = np.isfinite(medians)
        if not finite.any():
            return None
        wall = np.concatenate([[False], ~finite, [False]])
        framed = np.concatenate([[-math.inf], x, [math.inf]])
        return cls(
            x=x[finite],
            losses=losses[finite],
            levels=levels_of(losses[finite]),
            left=framed[:-2][finite],
            right=framed[2:][finite],
            wall_left=wall[:-2][finite],
            wall_right=wall[2:][finite],
        )

    def is_inside(self, point: int) -> bool:
        """Whether a point has finite neighbours on both sides."""
        ends = (self.left[point], self.right[point])
        return bool(np.isfinite(ends).all()) and not (self.wall_left[point] or self.wall_right[point])

    def around(self, point: int) -> NDArray[np.intp]:
        """Return the points that may be fitted around an inner one: in the window, with no diverged point between."""
        first = last = point
        while not self.wall_left[first] and self.left[first] >= self.x[point] - WINDOW:
            first -= 1
        while not self.wall_right[last] and self.right[last] <= self.x[point] + WINDOW:
            last += 1
        return np.arange(min(first, point - 1), max(last, point + 1) + 1)

    def interpolated(self, levels: Floats, at: float) -> float:
        """Return the loss at a place, given levels [V]; inf next to a diverged point and beyond the grid.

        The curve between two points is a parabola through both and the next point downhill, clipped to their losses.
        """
        after = int(np.searchsorted(self.x, at))
        if after < len(self.x) and self.x[after] == at:
            return float(levels[after])
        if after == 0 or after == len(self.x) or self.wall_left[after]:
            return math.inf
        low, high = after - 1, after
        share = (at - self.x[low]) / (self.x[high] - self.x[low])
        value = float((1 - share) * levels[low] + share * levels[high])
        slope = (levels[high] - levels[low]) / (self.x[high] - self.x[low])
        third = low - 1 if slope > 0 else high + 1
        if 0 <= third < len(self.x) and not (self.wall_left[low] if slope > 0 else self.wall_right[high]):
            to_third = (levels[third] - levels[low]) / (self.x[third] - self.x[low])
            bend = (to_third - slope) / (self.x[third] - self.x[high])
            value += float(bend * (at - self.x[low]) * (at - self.x[high]))
        return min(max(value, float(min(levels[low], levels[high]))), float(max(levels[low], levels[high])))


def levels_of(losses: Floats) -> Floats:
    """Return the level of each point from losses [..., V, S]: the median over seeds after each seed's shift is removed.

    With a median, one bad run does not move a point. Without the shifts, it does not matter whose loss is the median.
    """
    median = np.nanmedian if np.isnan(losses).any() else np.median
    shift = median(losses - median(losses, axis=-1, keepdims=True), axis=-2, keepdims=True)
    shift = shift - np.nanmean(shift, axis=-1, keepdims=True)
    levels: Floats = median(losses - shift, axis=-1)
    return levels


@dataclass(frozen=True, eq=False)
class Minima:
    """Minima of n versions of one curve. Fields of the fit are nan where the best point has no finite neighbours.

    Args:
        point: index of the best point [n].
        value: place of the minimum [n], log2.
        low: lower bound of the minimum [n]; equal to `value` where there is a fit.
        high: upper bound [n], likewise.
        loss: loss at the minimum [n].
        curvature: second derivative of the loss there [n].
        polynomial: the fit [n, 4], lowest power first, with its origin at the best point.
        vertex: minimum of the polynomial [n], relative to the best point.
        slip: how far a fit of another degree moves the minimum [n].
        can_correct: whether that degree is higher [n].
    """

    point: NDArray[np.intp]
    value: Floats
    low: Floats
    high: Floats
    loss: Floats
    curvature: Floats
    polynomial: Floats
    vertex: Floats
    slip: Floats
    can_correct: NDArray[np.bool_]

    def moved(self, by: Floats) -> Minima:
        """Return the minima and their bounds moved by some octaves [n]."""
        return replace(self, value=self.value + by, low=self.low + by, high=self.high + by)


def locate(points: Points, levels: Floats) -> Minima:
    """Return the minima of n versions of a curve, given their levels [n, V]."""
    n = len(levels)
    best = np.argmin(levels, axis=1) if n else np.empty(0, np.intp)
    value, loss = points.x[best], levels[np.arange(n), best]
    # Without a fit, the minimum lies closer to the best point than to a finite neighbour.
    low = np.where(points.wall_left | np.isinf(points.left), points.left, (points.left + points.x) / 2)[best]
    high = np.where(points.wall_right | np.isinf(points.right), points.right, (points.right + points.x) / 2)[best]
    curvature, polynomial, slip = np.full(n, math.nan), np.full((n, 4), math.nan), np.full(n, math.nan)
    vertex, can_correct = np.full(n, math.nan), np.zeros(n, bool)
    for point in np.unique(best).tolist():
        if not points.is_inside(point):
            continue
        rows = np.flatnonzero(best == point)
        polynomial[rows], slip[rows], can_correct[rows] = _fit(points, levels[rows], point)
        vertex[rows], curvature[rows] = _vertex(polynomial[rows])
        value[rows] = low[rows] = high[rows] = points.x[point] + vertex[rows]
        loss[rows] = evaluate(polynomial[rows], vertex[rows])
    return Minima(best, value, low, high, loss, curvature, polynomial, vertex, slip, can_correct)


def evaluate(polynomial: Floats, at: Floats) -> Floats:
    """Return the values of polynomials [n, 4], lowest power first, at one place per polynomial [n]."""
    c0, c1, c2, c3 = polynomial.T
    value: Floats = c0 + at * (c1 + at * (c2 + at * c3))
    return value


def _vertex(polynomial: Floats) -> tuple[Floats, Floats]:
    """Return the minimum of each cubic and the second derivative there; nan where it has none.

    c1 + 2 c2 u + 3 c3 u^2 = 0 has its minimum at u = -c1 / (c2 + r) with r^2 = c2^2 - 3 c1 c3, and p'' = 2 r there.
    """
    _, c1, c2, c3 = polynomial.T
    with np.errstate(invalid="ignore", divide="ignore"):
        root = np.sqrt(c2**2 - 3 * c1 * c3)
        at = np.where(c2 + root > 0, -c1 / (c2 + root), math.nan)
    return at, 2 * root


def _fit(points: Points, levels: Floats, point: int) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return polynomials [n, 4] around the best point, an inner one, of curves [n, V]; their slips; `can_correct`."""
    window = points.around(point)
    away = np.abs(points.x[window] - points.x[point])
    bend = (levels[:, window] - levels[:, [point]]) / np.where(away > 0, away, 1.0) ** 2
    near = (away <= NEAR) | (np.abs(window - point) == 1)
    # Steep points are left out, and so are all points beyond them.
    gentle = near | (bend <= STEEP * bend[:, near].max(axis=1, keepdims=True))
    gentle = np.where(
        window < point,
        np.logical_and.accumulate(gentle[:, ::-1] | (window >= point)[::-1], axis=1)[:, ::-1],
        np.logical_and.accumulate(gentle | (window <= point), axis=1),
    )
    polynomial, slip = np.empty((len(levels), 4)), np.empty(len(levels))
    for pattern in np.unique(gentle, axis=0):
        rows = np.flatnonzero((gentle == pattern).all(axis=1))
        x, fitted = points.x[window[pattern]] - points.x[point], levels[rows][:, window[pattern]]
        polynomial[rows] = _least_squares(x, fitted, degree=min(3, len(x) - 1))[:, :4]
        other = _least_squares(x, fitted, degree=4 if len(x) > 4 else 2)
        slip[rows] = _step_to_minimum(other, _vertex(polynomial[rows])[0])
    # The minimum must lie between the neighbours of the best point. Else fit three points: theirs always does.
    at, _ = _vertex(polynomial)
    below, above = points.x[point] - points.x[point - 1], points.x[point + 1] - points.x[point]
    sound = (at >= -below) & (at <= above)
    three = slice(point - 1, point + 2)
    polynomial[~sound] = _least_squares(points.x[three] - points.x[point], levels[~sound, three], degree=2)[:, :4]
    # Three points allow no second fit; a skew that they cannot show moves the minimum by about this much.
    unknown = (below + above) / 16
    n_points, sound = gentle.sum(1), sound & np.isfinite(slip)
    slip = np.where(sound & (n_points > 3), slip, unknown)
    return polynomial, np.clip(slip, -4 * unknown, 4 * unknown), sound & (n_points > 4)


def _least_squares(x: Floats, levels: Floats, degree: int) -> Floats:
    """Return weighted least-squares polynomials [n, 5] through levels [n, len(x)]."""
    weight = np.clip(1 - (x / np.maximum(REACH, np.abs(x) + 1)) ** 2, 0.0, 1.0)
    basis = np.vander(x, degree + 1, increasing=True)
    polynomial = np.zeros((len(levels), 5))
    polynomial[:, : degree + 1] = levels @ (np.linalg.pinv(basis * weight[:, None]) * weight).T
    return polynomial


def _step_to_minimum(polynomial: Floats, at: Floats) -> Floats:
    """Return Newton's step from places [n] towards the minima of polynomials [n, 5]; nan where they bend down."""
    _, c1, c2, c3, c4 = polynomial.T
    slope = c1 + at * (2 * c2 + at * (3 * c3 + at * 4 * c4))
    bend = 2 * c2 + at * (6 * c3 + at * 12 * c4)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(bend > 0, -slope / bend, math.nan)
