"""Bigger is better: the loss of each size minus that of the next smaller one, and how often the sign changes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.analysis.collapse import Crossing, crossings, trace
from expertp.figures import style
from expertp.figures.collapse import CollapseAxis, CollapseData, RecordsOf, lines
from expertp.figures.labels import axis_title, known, size_label, thinned
from expertp.study import StudySpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Pair:
    """Two neighbouring sizes: the difference of their smoothed losses over time, and their crossings."""

    axis: str
    smaller: str
    larger: str
    steps: tuple[int, ...]
    difference: tuple[float, ...]
    crossing: Crossing


@dataclass(frozen=True)
class BiggerData:
    """All neighbours of all axes; crossings count from each axis's `after` on."""

    axes: tuple[str, ...]
    pairs: tuple[Pair, ...]
    after: dict[str, int]

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return len(self.axes), 1

    @property
    def count(self) -> int:
        """All crossings."""
        return sum(each.crossing.count for each in self.pairs)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per pair and step that is drawn."""
        return [
            {
                "axis": each.axis,
                "smaller": each.smaller,
                "larger": each.larger,
                "step": each.steps[place],
                "difference": known(each.difference[place]),
                "crossings": each.crossing.count,
            }
            for each in self.pairs
            for place in thinned(each.steps)
        ]


def data(study: StudySpec, collapsed: CollapseData, records: RecordsOf) -> BiggerData:
    """Compare neighbours along each axis, from where the base has made half of its way."""
    pairs: list[Pair] = []
    after: dict[str, int] = {}
    for each in collapsed.axes:
        if each.collapse is None:
            continue
        after[each.axis] = each.collapse.half_drop_step
        models = study.models(each.axis)
        traces = [trace(scale, found) for scale in models if (found := records(models[scale], study.hps.rules))]
        pairs += _pairs(study, each, crossings(traces, after=after[each.axis]))
    return BiggerData(tuple(each.axis for each in collapsed.axes), tuple(pairs), after)


def _pairs(study: StudySpec, each: CollapseAxis, found: tuple[Crossing, ...]) -> list[Pair]:
    assert each.collapse is not None, "the caller has looked"
    losses = {scale: np.asarray(mean) for scale, mean, _ in lines(each.collapse)}
    return [
        Pair(
            axis=each.axis,
            smaller=size_label(study, each.axis, crossing.smaller),
            larger=size_label(study, each.axis, crossing.larger),
            steps=each.collapse.steps,
            difference=tuple((losses[crossing.larger] - losses[crossing.smaller]).tolist()),
            crossing=crossing,
        )
        for crossing in found
    ]


def draw(figure: Figure, bigger: BiggerData) -> None:
    """Draw a panel per axis; below zero the larger model is the better one."""
    grid = figure.subplots(1, len(bigger.axes), squeeze=False, sharey=True)[0]
    for ax, axis in zip(grid, bigger.axes, strict=True):
        pairs = [each for each in bigger.pairs if each.axis == axis]
        ax.set_title(axis_title(axis), pad=20 if pairs else 6)
        if not pairs:
            style.nothing_here(ax, "not two sizes yet")
            continue
        _draw_axis(ax, pairs, bigger.after[axis])
    grid[0].set_ylabel("larger − smaller (nats)")
    late = [
        abs(value)
        for each in bigger.pairs
        for step, value in zip(each.steps, each.difference, strict=True)
        if step >= bigger.after[each.axis] and not math.isnan(value)
    ]
    reach = 1.2 * max(late, default=0.01)
    grid[0].set_ylim(-reach, reach)


def _draw_axis(ax: Axes, pairs: list[Pair], after: int) -> None:
    style.faint_grid(ax)
    ax.axhline(0, color=style.INK, linewidth=0.9)
    ax.axvline(after, color=style.INK, alpha=0.5, linewidth=1, linestyle=(0, (1, 1.5)))
    style.step_ticks(ax)
    for place, each in enumerate(pairs):
        colour = style.size_colour(place + 1, len(pairs) + 1)
        shown = thinned(each.steps)
        steps, difference = np.asarray(each.steps, float)[shown], np.asarray(each.difference)[shown]
        count = each.crossing.count
        ax.plot(steps, difference, color=colour, linewidth=1.3, label=f"{each.larger} − {each.smaller}: {count}")
        for step in each.crossing.steps:
            ax.plot([step], [0], marker="x", color=colour, markersize=7, markeredgewidth=1.6)
    style.legend_above(ax)
    ax.set_xlabel("step")
