"""The shape of a loss curve round its best cell: which cells belong to the valley, and the polynomial through them.

The loss is fitted over log2 of the hyperparameter by a quadratic with a cubic term: loss rises more steeply towards
large learning rates, and a plain quadratic would place every optimum too low. Cells far away, or far above their
neighbours, do not belong to the valley and have no say. Many versions of one curve are fitted at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from expertp.analysis.curves import Curve

Floats = NDArray[np.float64]
# Cells up to so many octaves from the best one are fitted, with weights that would be 0 at 3 octaves ...
WINDOW, REACH = 2.0, 3.0
# ... unless they rise above the best, per octave squared, so many times as much as all cells within an octave do.
STEEP, NEAR = 2.0, 1.0


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a curve that have a finite loss [V], and what lies on both sides of each.

    Args:
        x: log2 values.
        losses: per cell and seed [V, S]; nan where there is no result.
        levels: per cell, median over seeds beside the seeds' shifts.
        left: the value of the next cell below, -inf where the grid ends.
        right: the value of the next cell above, inf where the grid ends.
        wall_left: whether that cell has diverged.
        wall_right: the same above.
    """

    x: Floats
    losses: Floats
    levels: Floats
    left: Floats
    right: Floats
    wall_left: NDArray[np.bool_]
    wall_right: NDArray[np.bool_]

    @classmethod
    def of(cls, curve: Curve) -> Cells | None:
        """Return the cells of a curve; None where there is none."""
        medians, x = np.array(curve.medians), np.array(curve.log2_values, float)
        there = ~np.isnan(medians)
        # A value without any result is no cell: the one behind it is the neighbour.
        medians, x, losses = medians[there], x[there], np.array(curve.losses)[there]
        losses = losses[:, ~np.isnan(losses).all(0)]  # nor is a seed that nothing has been trained with a seed
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

    def is_inside(self, cell: int) -> bool:
        """Whether a cell has finite neighbours on both sides."""
        ends = (self.left[cell], self.right[cell])
        return bool(np.isfinite(ends).all()) and not (self.wall_left[cell] or self.wall_right[cell])

    def valley(self, cell: int) -> NDArray[np.intp]:
        """Return the cells that may be fitted round an inner one: within the window, with no wall between."""
        first = last = cell
        while not self.wall_left[first] and self.left[first] >= self.x[cell] - WINDOW:
            first -= 1
        while not self.wall_right[last] and self.right[last] <= self.x[cell] + WINDOW:
            last += 1
        return np.arange(min(first, cell - 1), max(last, cell + 1) + 1)

    def interpolated(self, levels: Floats, at: float) -> float:
        """Return the loss [V] between two cells; inf between a cell and a wall, or beyond the grid.

        A parabola through the two and the next one down the valley, if there is one, kept between the two.
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
    """Return the level of each cell from losses [..., V, S]: median over seeds once each seed's own shift is removed.

    A median, so that one unlucky run does not move a cell; the shift first, so that it does not matter whose is taken.
    """
    median = np.nanmedian if np.isnan(losses).any() else np.median
    shift = median(losses - median(losses, axis=-1, keepdims=True), axis=-2, keepdims=True)
    shift = shift - np.nanmean(shift, axis=-1, keepdims=True)
    levels: Floats = median(losses - shift, axis=-1)
    return levels


@dataclass(frozen=True, eq=False)
class Located:
    """Minima of several versions of one curve [n], their bounds, and the polynomials [n, 4] fitted there.

    `polynomial` has its origin at the best cell, whose index is `cell`, and its minimum at `vertex`; `slip` is how far
    a fit of another degree moves that, one of a higher degree where `can_correct`. nan where the best cell is no inner.
    """

    cell: NDArray[np.intp]
    value: Floats
    low: Floats
    high: Floats
    loss: Floats
    curvature: Floats
    polynomial: Floats
    vertex: Floats
    slip: Floats
    can_correct: NDArray[np.bool_]

    def moved(self, by: Floats) -> Located:
        """Return the same with all places moved [n]."""
        return replace(self, value=self.value + by, low=self.low + by, high=self.high + by)


def locate(cells: Cells, levels: Floats) -> Located:
    """Return the minima of versions of a curve, levels [n, V]."""
    n = len(levels)
    best = np.argmin(levels, axis=1) if n else np.empty(0, np.intp)
    value, loss = cells.x[best], levels[np.arange(n), best]
    # Where the best cell is an outer one, its neighbour's half of the gap belongs to the neighbour.
    low = np.where(cells.wall_left | np.isinf(cells.left), cells.left, (cells.left + cells.x) / 2)[best]
    high = np.where(cells.wall_right | np.isinf(cells.right), cells.right, (cells.right + cells.x) / 2)[best]
    curvature, polynomial, slip = np.full(n, math.nan), np.full((n, 4), math.nan), np.full(n, math.nan)
    vertex, can_correct = np.full(n, math.nan), np.zeros(n, bool)
    for cell in np.unique(best):
        if not cells.is_inside(cell):
            continue
        rows = np.flatnonzero(best == cell)
        polynomial[rows], slip[rows], can_correct[rows] = _fit(cells, levels[rows], cell)
        vertex[rows], curvature[rows] = _vertex(polynomial[rows])
        value[rows] = low[rows] = high[rows] = cells.x[cell] + vertex[rows]
        loss[rows] = evaluate(polynomial[rows], vertex[rows])
    return Located(best, value, low, high, loss, curvature, polynomial, vertex, slip, can_correct)


def evaluate(polynomial: Floats, at: Floats) -> Floats:
    """Return the values of polynomials [n, 4], lowest power first, at one place each."""
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


def _fit(cells: Cells, levels: Floats, cell: int) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return polynomials [n, 4] round an inner cell, the best in each version [n, V] of the curve, and their slips."""
    valley = cells.valley(cell)
    away = np.abs(cells.x[valley] - cells.x[cell])
    bend = (levels[:, valley] - levels[:, [cell]]) / np.where(away > 0, away, 1.0) ** 2
    near = (away <= NEAR) | (np.abs(valley - cell) == 1)
    # Steep cells are left out with all that lies beyond them.
    gentle = near | (bend <= STEEP * bend[:, near].max(axis=1, keepdims=True))
    gentle = np.where(
        valley < cell,
        np.logical_and.accumulate(gentle[:, ::-1] | (valley >= cell)[::-1], axis=1)[:, ::-1],
        np.logical_and.accumulate(gentle | (valley <= cell), axis=1),
    )
    polynomial, slip = np.empty((len(levels), 4)), np.empty(len(levels))
    for pattern in np.unique(gentle, axis=0):
        rows = np.flatnonzero((gentle == pattern).all(axis=1))
        x, fitted = cells.x[valley[pattern]] - cells.x[cell], levels[rows][:, valley[pattern]]
        polynomial[rows] = _least_squares(x, fitted, degree=min(3, len(x) - 1))[:, :4]
        other = _least_squares(x, fitted, degree=4 if len(x) > 4 else 2)
        slip[rows] = _step_to_minimum(other, _vertex(polynomial[rows])[0])
    # Between the neighbours, where the best cell says it is; else what three points say, which is always between.
    at, _ = _vertex(polynomial)
    below, above = cells.x[cell] - cells.x[cell - 1], cells.x[cell + 1] - cells.x[cell]
    sound = (at >= -below) & (at <= above)
    three = slice(cell - 1, cell + 2)
    polynomial[~sound] = _least_squares(cells.x[three] - cells.x[cell], levels[~sound, three], degree=2)[:, :4]
    # Three cells hold no second opinion: a skew that the cells can still hide moves the minimum by about this much.
    unknown = (below + above) / 16
    n_cells, sound = gentle.sum(1), sound & np.isfinite(slip)
    slip = np.where(sound & (n_cells > 3), slip, unknown)
    return polynomial, np.clip(slip, -4 * unknown, 4 * unknown), sound & (n_cells > 4)


def _least_squares(x: Floats, levels: Floats, degree: int) -> Floats:
    """Return weighted least-squares polynomials [n, 5] through levels [n, len(x)]."""
    weight = np.clip(1 - (x / np.maximum(REACH, np.abs(x) + 1)) ** 2, 0.0, 1.0)
    basis = np.vander(x, degree + 1, increasing=True)
    polynomial = np.zeros((len(levels), 5))
    polynomial[:, : degree + 1] = levels @ (np.linalg.pinv(basis * weight[:, None]) * weight).T
    return polynomial


def _step_to_minimum(polynomial: Floats, at: Floats) -> Floats:
    """Return Newton's step from a place towards the minimum of polynomials [n, 5]; nan where they bend down."""
    _, c1, c2, c3, c4 = polynomial.T
    slope = c1 + at * (2 * c2 + at * (3 * c3 + at * 4 * c4))
    bend = 2 * c2 + at * (6 * c3 + at * 12 * c4)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(bend > 0, -slope / bend, math.nan)
