"""How evenly tokens are spread over experts in the course of training, on all of the range that there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.analysis.balance import LoadBalance, load_balance
from expertp.figures import style
from expertp.figures.collapse import RecordsOf
from expertp.figures.labels import axis_title, seeds_label, size_label, thinned
from expertp.study import StudySpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class LoadLine:
    """The loads of one size; `experts` counts those of all layers."""

    axis: str
    label: str
    load: LoadBalance
    experts: int


@dataclass(frozen=True)
class BalanceData:
    """The loads of all sizes, and the most that a load can deviate."""

    axes: tuple[str, ...]
    lines: tuple[LoadLine, ...]
    most: float

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return len(self.axes), 1.6

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per axis, scale and step that is drawn."""
        return [
            {
                "axis": line.axis,
                "size": line.label,
                "scale": line.load.scale,
                "step": line.load.steps[place],
                "max_load_deviation": line.load.max_deviation[place],
                "dead_experts": line.load.dead_experts[place],
                "experts": line.experts,
                "seeds": line.load.n_seeds,
            }
            for line in self.lines
            for place in thinned(line.load.steps)
        ]


def data(study: StudySpec, records: RecordsOf) -> BalanceData:
    """Gather the loads of the zero-shot runs."""
    lines = [
        LoadLine(axis, size_label(study, axis, scale), load, model.n_layer * model.n_exp)
        for axis in study.axis_names
        for scale, model in study.models(axis).items()
        if (load := load_balance(scale, records(model, study.hps.rules)))
    ]
    models = [model for axis in study.axis_names for model in study.models(axis).values()]
    return BalanceData(study.axis_names, tuple(lines), max(1.0 - float(model.kappa) for model in models))


def draw(figure: Figure, balance: BalanceData) -> None:
    """Draw the largest deviation above and the share of dead experts below, a column per axis."""
    grid = figure.subplots(2, len(balance.axes), squeeze=False, sharey="row", sharex="col", height_ratios=(1.4, 1))
    for column, axis in enumerate(balance.axes):
        found = [line for line in balance.lines if line.axis == axis]
        upper, lower = grid[0][column], grid[1][column]
        upper.set_title(axis_title(axis), pad=20 if found else 6)
        if not found:
            style.nothing_here(upper, "no zero-shot run yet")
            style.nothing_here(lower, "")
            continue
        _draw_axis(upper, lower, found)
    grid[0][0].set_ylim(0, balance.most)
    grid[1][0].set_ylim(0, 1)
    seeds = seeds_label(line.load.n_seeds for line in balance.lines)
    grid[0][0].set_ylabel(f"max |Load − κ|,\nmean of {seeds}")
    grid[1][0].set_ylabel("dead experts")
    style.percent_ticks(grid[1][0])


def _draw_axis(upper: Axes, lower: Axes, found: list[LoadLine]) -> None:
    for ax in (upper, lower):
        style.faint_grid(ax)
        style.step_ticks(ax)
    for place, line in enumerate(found):
        colour, shown = style.size_colour(place, len(found)), thinned(line.load.steps)
        steps = np.asarray(line.load.steps, float)[shown]
        upper.plot(steps, np.asarray(line.load.max_deviation)[shown], color=colour, linewidth=1.1, label=line.label)
        dead = np.asarray(line.load.dead_experts)[shown] / line.experts
        lower.plot(steps, dead, color=colour, linewidth=1.1)
    style.legend_above(upper)
    lower.set_xlabel("step")
