"""Zero-shot loss over the number of parameters, with a power law per axis and its R^2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from expertp.analysis.scaling import Parameters, ScalingFit, scaling_fit
from expertp.figures import style
from expertp.figures.labels import as_drawn, minus
from expertp.figures.save import FigureData, Value
from expertp.figures.style import Axes, Figure
from expertp.study.table import StudyTable

COUNTED: tuple[Parameters, ...] = get_args(Parameters)
TITLES: dict[Parameters, str] = {"total": "all", "active": "active", "non_embedding": "non-embedding"}


@dataclass(frozen=True)
class ScalingData(FigureData):
    """One fit per axis and way of counting parameters."""

    columns = ("axis", "counted", "scale", "parameters", "loss", "exponent", "r2", "seeds")
    shape = (len(COUNTED), 1.15)
    fits: tuple[ScalingFit, ...]
    n_seeds: int

    def records(self) -> Iterator[Sequence[Value]]:
        """Return one row per point."""
        for fit in self.fits:
            for point in fit.points:
                law = (fit.law.exponent, fit.law.r2)
                yield fit.axis, fit.parameters, point.size.scale, point.parameters, point.loss, *law, self.n_seeds


def data(table: StudyTable) -> ScalingData:
    """Fit every axis with at least three sizes."""
    found = [scaling_fit(table, parameters, axis, table.own) for parameters in COUNTED for axis in table.axes]
    return ScalingData(tuple(fit for fit in found if fit), len(table.study.seeds))


def draw(figure: Figure, scaling: ScalingData) -> None:
    """Draw one panel per way of counting parameters, all on one range of losses."""
    axes = dict.fromkeys(fit.axis for fit in scaling.fits)
    looks = {axis: (style.size_colour(place, len(axes)), style.marker(place)) for place, axis in enumerate(axes)}
    grid = figure.subplots(1, len(COUNTED), squeeze=False, sharey=True)[0]
    for ax, parameters in zip(grid, COUNTED, strict=True):
        ax.set_title(f"{TITLES[parameters]} parameters")
        _draw_panel(ax, [fit for fit in scaling.fits if fit.parameters == parameters], looks)
    grid[0].set_ylabel("zero-shot validation loss (nats)")


def _draw_panel(ax: Axes, fits: Sequence[ScalingFit], looks: Mapping[str, tuple[str, str]]) -> None:
    from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator, StrMethodFormatter

    style.faint_grid(ax)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    for fit in fits:
        colour, marker = looks[fit.axis]
        x = [float(point.parameters) for point in fit.points]
        ax.plot(x, [point.loss for point in fit.points], marker=marker, linestyle="none", color=colour)
        fine = np.geomspace(min(x), max(x), 30)
        label = f"{as_drawn(fit.axis)}: R² {fit.law.r2:.3f}, " + minus(f"exponent {fit.law.exponent:.3f}")
        # The marker appears in the legend only.
        ax.plot(fine, [*map(fit.law, fine)], color=colour, linewidth=1.2, marker=marker, markevery=[], label=label)
    style.parameter_ticks(ax, [point.parameters for fit in fits for point in fit.points])
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:.2f}"))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("parameters")
    # Below the panel: inside, four lines of text would hide the points.
    ax.legend(loc="upper left", bbox_to_anchor=(-0.03, -0.24), fontsize=8, handlelength=1.2, borderaxespad=0.1)
