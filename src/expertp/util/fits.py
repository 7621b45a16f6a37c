"""Least-squares fits of lines and power laws."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """y = level + slope x with its coefficient of determination, nan for constant y."""

    level: float
    slope: float
    r2: float

    def __call__(self, x: float) -> float:
        """Return y at x."""
        return self.level + self.slope * x


def fit_line(x: Floats, y: Floats) -> Line:
    """Fit a line by least squares.

    >>> fit_line([0.0, 1.0, 2.0], [1.0, 3.0, 5.0])
    Line(level=1.0, slope=2.0, r2=1.0)
    """
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    offset_x, offset_y = xs - xs.mean(), ys - ys.mean()
    slope = float(offset_x @ offset_y / (offset_x @ offset_x))
    left, variance = offset_y - slope * offset_x, float(offset_y @ offset_y)
    r2 = 1.0 - float(left @ left) / variance if variance > 0 else math.nan
    return Line(float(ys.mean() - slope * xs.mean()), slope, r2)


def r2_with_offset(x: Floats, y: Floats, is_offset: Sequence[bool]) -> float:
    """Return the coefficient of determination of a line with an offset for some points.

    >>> round(r2_with_offset([0.0, 1.0, 2.0, 3.0], [1.0, 3.0, 9.0, 11.0], [False, False, True, True]), 9)
    1.0
    """
    ys = np.asarray(y, float)
    design = np.stack([np.ones(len(ys)), np.asarray(x, float), np.asarray(is_offset, float)], axis=1)
    left = ys - design @ np.linalg.lstsq(design, ys, rcond=None)[0]
    return 1.0 - float(left @ left) / float(((ys - ys.mean()) ** 2).sum())


def fit_power(points: Iterable[tuple[float, float]]) -> Line:
    """Fit a line to log y against log x; its slope is the exponent of the power law."""
    x, y = zip(*points, strict=True)
    return fit_line(np.log(x), np.log(y))


def fit_slope(points: Iterable[tuple[float, float]]) -> float:
    """Return the slope of log y against log x.

    >>> round(fit_slope([(1, 3.0), (2, 6.0), (4, 12.0)]), 9)
    1.0
    """
    return fit_power(points).slope
