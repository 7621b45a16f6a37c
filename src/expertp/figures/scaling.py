"""Zero-shot loss over the number of parameters, with a power law per axis and how well it fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from expertp.analysis.curves import StudyTable
from expertp.analysis.scaling import Parameters, ScalingFit, scaling_fit
from expertp.figures import style
from expertp.figures.labels import known

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COUNTED: tuple[Parameters, ...] = get_args(Parameters)
TITLES: dict[Parameters, str] = {"total": "all", "active": "active", "non_embedding": "without embeddings"}


@dataclass(frozen=True)
class ScalingData:
    """One fit per axis and way of counting."""

    fits: tuple[tuple[str, ScalingFit], ...]
    n_seeds: int

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return len(COUNTED), 1.15

    def of(self, parameters: Parameters) -> list[tuple[str, ScalingFit]]:
        """Return the fits of one way of counting, with their axes."""
        return [(axis, fit) for axis, fit in self.fits if fit.parameters == parameters]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per point."""
        return [
            {
                "axis": axis,
                "counted": fit.parameters,
                "scale": point.scale,
                "parameters": point.parameters,
                "loss": point.loss,
                "exponent": fit.law.exponent,
                "r2": known(fit.law.r2),
                "seeds": self.n_seeds,
            }
            for axis, fit in self.fits
            for point in fit.points
        ]


def data(table: StudyTable) -> ScalingData:
    """Fit every axis that has three sizes."""
    study = table.study
    found = [
        (axis, fit)
        for parameters in COUNTED
        for axis in study.axis_names
        if (fit := scaling_fit(table, parameters, axis, study.hps.rules))
    ]
    return ScalingData(tuple(found), len(study.seeds))


def draw(figure: Figure, scaling: ScalingData) -> None:
    """Draw a panel per way of counting, all on one range of losses."""
    grid = figure.subplots(1, len(COUNTED), squeeze=False, sharey=True)[0]
    axes = list(dict.fromkeys(axis for axis, _ in scaling.fits))
    for ax, parameters in zip(grid, COUNTED, strict=True):
        ax.set_title(TITLES[parameters])
        _draw_panel(ax, scaling.of(parameters), axes)
    grid[0].set_ylabel("zero-shot validation loss (nats)")


def _draw_panel(ax: Axes, fits: list[tuple[str, ScalingFit]], axes: list[str]) -> None:
    from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator, StrMethodFormatter

    style.faint_grid(ax)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    for axis, fit in fits:
        place = axes.index(axis)
        colour = style.size_colour(place, len(axes))
        x = np.array([point.parameters for point in fit.points], float)
        ax.plot(x, [point.loss for point in fit.points], marker=style.marker(place), linestyle="none", color=colour)
        fine = np.geomspace(x.min(), x.max(), 30)
        label = f"{axis}: R² {fit.law.r2:.3f}, exponent {fit.law.exponent:.3f}".replace("-", "\N{MINUS SIGN}")
        # The marker is for the legend only: the line has none.
        laws = [fit.law(value) for value in fine]
        ax.plot(fine, laws, color=colour, linewidth=1.2, marker=style.marker(place), markevery=[], label=label)
    counts = sorted({point.parameters for _, fit in fits for point in fit.points})
    style.parameter_ticks(ax, counts)
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:.2f}"))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("parameters")
    # Below the panel: four lines of text would hide what they are about.
    ax.legend(loc="upper left", bbox_to_anchor=(-0.03, -0.24), fontsize=8, handlelength=1.2, borderaxespad=0.1)
