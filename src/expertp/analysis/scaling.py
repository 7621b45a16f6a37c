"""How the zero-shot loss falls with the number of parameters: a power law and how well it fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from expertp.analysis.curves import StudyTable
from expertp.fits import fit_power
from expertp.spec import ModelSpec

Parameters = Literal["total", "active", "non_embedding"]
MIN_SIZES = 3


@dataclass(frozen=True)
class PowerLaw:
    """L = amplitude x^-exponent, fitted in logarithms, and the fraction of the variance of log L that it explains."""

    amplitude: float
    exponent: float
    r2: float

    def __call__(self, x: float) -> float:
        """Return the law's loss at a number of parameters."""
        return float(self.amplitude * x**-self.exponent)


@dataclass(frozen=True)
class ScalingPoint:
    """The mean zero-shot loss of one model over seeds, and what it is plotted against."""

    axis: str
    scale: float
    parameters: int
    loss: float


@dataclass(frozen=True)
class ScalingFit:
    """A power law over models of a study, and the points that it was fitted to."""

    parameters: Parameters
    points: tuple[ScalingPoint, ...]
    law: PowerLaw


def fit_power_law(x: Sequence[float], losses: Sequence[float]) -> PowerLaw | None:
    """Fit log L = log A - b log x by least squares; None with fewer than 3 different x.

    >>> law = fit_power_law([1e6, 2e6, 8e6], [4.0, 4.0 / 2**0.1, 4.0 / 8**0.1])
    >>> round(law.exponent, 6), round(law.r2, 6), round(law(2e6), 3)
    (0.1, 1.0, 3.732)
    """
    if len(set(x)) < MIN_SIZES:
        return None
    line = fit_power(zip(x, losses, strict=True))
    return PowerLaw(math.exp(line.level), -line.slope, line.r2)


def scaling_fit(table: StudyTable, parameters: Parameters, axis: str, rules: str) -> ScalingFit | None:
    """Fit the zero-shot losses of an axis; None with fewer than 3 sizes of which every seed has finished.

    One axis at a time: at the same number of parameters, depth and experts do not buy the same loss.
    """
    points = []
    for scale, model in table.study.models(axis).items():
        losses = table.zero_shot(axis, scale, rules)
        if all(map(math.isfinite, losses)):
            points.append(ScalingPoint(axis, scale, _count(model, parameters), float(np.mean(losses))))
    law = fit_power_law([point.parameters for point in points], [point.loss for point in points])
    return ScalingFit(parameters, tuple(points), law) if law else None


def _count(model: ModelSpec, parameters: Parameters) -> int:
    counts = model.counts()
    return {"total": counts.total, "active": counts.active, "non_embedding": counts.non_embedding_total}[parameters]
