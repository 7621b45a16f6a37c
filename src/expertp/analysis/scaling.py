"""Power-law fits of the zero-shot loss over the number of parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from expertp.study.cells import Arm, Size
from expertp.study.table import StudyTable
from expertp.util.fits import Floats, fit_power

Parameters = Literal["total", "active", "non_embedding"]
MIN_SIZES = 3
# Field of the counts of a model.
COUNT: dict[Parameters, str] = {"total": "total", "active": "active", "non_embedding": "non_embedding_total"}


@dataclass(frozen=True)
class PowerLaw:
    """L = amplitude x^-exponent, fitted in logarithms; `r2` is the explained fraction of the variance of log L."""

    amplitude: float
    exponent: float
    r2: float

    def __call__(self, x: float) -> float:
        """Return the loss at a number of parameters."""
        return float(self.amplitude * x**-self.exponent)


@dataclass(frozen=True)
class ScalingPoint:
    """Mean zero-shot loss of one model over seeds, and its number of parameters."""

    size: Size
    parameters: int
    loss: float


@dataclass(frozen=True)
class ScalingFit:
    """A power law and the models of an axis that it was fitted to."""

    axis: str
    parameters: Parameters
    points: tuple[ScalingPoint, ...]
    law: PowerLaw


def fit_power_law(x: Floats, losses: Floats) -> PowerLaw | None:
    """Fit log L = log A - b log x by least squares; None with fewer than 3 different x.

    >>> law = fit_power_law([1e6, 2e6, 8e6], [4.0, 4.0 / 2**0.1, 4.0 / 8**0.1])
    >>> round(law.exponent, 6), round(law.r2, 6), round(law(2e6), 3)
    (0.1, 1.0, 3.732)
    """
    if len(set(x)) < MIN_SIZES:
        return None
    line = fit_power(zip(x, losses, strict=True))
    return PowerLaw(math.exp(line.level), -line.slope, line.r2)


def scaling_fit(table: StudyTable, parameters: Parameters, axis: str, arm: Arm) -> ScalingFit | None:
    """Fit the zero-shot losses along an axis; None with fewer than 3 sizes at which every seed has finished.

    Axes are fitted separately: at the same number of parameters, depth and experts do not give the same loss.
    """
    losses = {size: table.zero_shot(axis, size, arm) for size in table.sizes(axis)}
    finished = {size: float(np.mean(each)) for size, each in losses.items() if all(map(math.isfinite, each))}
    points = [
        ScalingPoint(size, getattr(size.model.counts(), COUNT[parameters]), loss) for size, loss in finished.items()
    ]
    law = fit_power_law([point.parameters for point in points], [point.loss for point in points])
    return ScalingFit(axis, parameters, tuple(points), law) if law else None
