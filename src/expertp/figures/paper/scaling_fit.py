"""Final loss of all scaled models over their number of parameters, counted in four ways, with one line through all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.figures import style
from expertp.figures.labels import LOSS, axis_title, seeds_label
from expertp.fits import Line, fit_line
from expertp.spec import ModelSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COUNTED = {
    "total": "all",
    "non_embedding_total": "without embeddings",
    "active": "active",
    "non_embedding_active": "active, without embeddings",
}


@dataclass(frozen=True)
class ScaledModel:
    """One model: the axis that it lies on, and its mean loss over seeds."""

    axis: str
    model: ModelSpec
    loss: float
    n_seeds: int

    def parameters(self, counted: str) -> int:
        """Return how many parameters it has."""
        return int(getattr(self.model.counts(), counted))


@dataclass(frozen=True)
class ScalingFitData:
    """Models, and a fit per way of counting."""

    points: tuple[ScaledModel, ...]

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return len(COUNTED), 1.15

    @cached_property
    def fits(self) -> dict[str, Line]:
        """Loss over log10 of the number of parameters, by how they are counted."""
        losses = [each.loss for each in self.points]
        return {
            counted: fit_line(np.log10([each.parameters(counted) for each in self.points]), losses)
            for counted in COUNTED
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per model and way of counting."""
        return [
            {
                "axis": each.axis,
                "counted": counted,
                "parameters": each.parameters(counted),
                "loss": each.loss,
                "seeds": each.n_seeds,
                "slope": self.fits[counted].slope,
                "r2": self.fits[counted].r2,
            }
            for counted in COUNTED
            for each in self.points
        ]


def draw(figure: Figure, fits: ScalingFitData) -> None:
    """Draw a panel per way of counting."""
    grid = figure.subplots(1, len(COUNTED), sharey=True)
    axes = list(dict.fromkeys(each.axis for each in fits.points))
    for ax, counted in zip(grid, COUNTED, strict=True):
        _draw_panel(ax, fits, counted, axes)
    seeds = seeds_label(each.n_seeds for each in fits.points)
    grid[0].set_ylabel(f"{LOSS},\nmean of {seeds}")
    style.figure_legend(figure, style.handles_of(grid))


def _draw_panel(ax: Axes, fits: ScalingFitData, counted: str, axes: Sequence[str]) -> None:
    style.faint_grid(ax)
    fit = fits.fits[counted]
    ax.set_title(f"{COUNTED[counted]}\nR² {fit.r2:.3f}")
    for place, axis in enumerate(axes):
        found = [each for each in fits.points if each.axis == axis]
        ax.plot(
            [each.parameters(counted) for each in found], [each.loss for each in found], linestyle="none",
            marker=style.marker(place), color=style.size_colour(place, len(axes)), label=axis_title(axis),
        )  # fmt: skip
    counts = [each.parameters(counted) for each in fits.points]
    ends = np.array([min(counts), max(counts)])
    ax.plot(ends, [fit(end) for end in np.log10(ends)], color=style.INK, alpha=0.6, linewidth=1.0)
    style.parameter_ticks(ax, counts)
    ax.set_xlabel("parameters")
