"""Is bigger better? Training loss of each size minus that of the next smaller one, and where the two cross."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from expertp.analysis.collapse import Collapse, Crossing, crossings
from expertp.analysis.seed_curves import training_losses
from expertp.figures import style
from expertp.figures.collapse import CollapseData
from expertp.figures.labels import axes_with_data, thinned
from expertp.figures.save import FigureData, Value
from expertp.figures.style import Figure
from expertp.study.table import StudyTable


@dataclass(frozen=True)
class Pair:
    """Two neighbouring sizes of an axis, their crossings, and the difference of their smoothed losses per step."""

    axis: str
    crossing: Crossing
    difference: tuple[float, ...]

    @property
    def labels(self) -> tuple[str, str]:
        """The smaller and the larger size in the unit of the axis."""
        return self.crossing.smaller.label_on(self.axis), self.crossing.larger.label_on(self.axis)


@dataclass(frozen=True)
class BiggerData(FigureData):
    """Neighbouring sizes of all axes; crossings count after the half-drop step of `collapses`."""

    columns = ("axis", "smaller", "larger", "step", "difference", "crossings")
    axes: tuple[str, ...]
    pairs: tuple[Pair, ...]
    collapses: Mapping[str, Collapse]

    @property
    def count(self) -> int:
        """Number of crossings of all pairs."""
        return sum(each.crossing.count for each in self.pairs)

    def records(self) -> Iterator[Sequence[Value]]:
        """Return one row per pair and drawn step."""
        for each in self.pairs:
            steps = self.collapses[each.axis].steps
            for place in thinned(steps):
                yield each.axis, *each.labels, steps[place], each.difference[place], each.crossing.count


def data(table: StudyTable, collapsed: CollapseData) -> BiggerData:
    """Compare neighbouring sizes along each axis, after the base has completed half of its loss decrease."""
    pairs: list[Pair] = []
    for axis, found in collapsed.collapses.items():
        records = {size: table.zero_shot_records(axis, size, collapsed.arm) for size in table.sizes(axis)}
        losses = {size: training_losses(each) for size, each in records.items() if each}
        means = {line.size: np.asarray(line.mean) for line in collapsed.lines(axis)}
        pairs += [
            Pair(axis, each, tuple((means[each.larger] - means[each.smaller]).tolist()))
            for each in crossings(losses, after=found.half_drop_step)
        ]
    axes = axes_with_data(collapsed.axes, {each.axis for each in pairs})
    return BiggerData(axes, tuple(pairs), collapsed.collapses)


def draw(figure: Figure, bigger: BiggerData) -> None:
    """Draw one panel per axis; below zero the larger model has the lower loss."""
    late = [0.0]
    for axis, (ax,) in style.columns(figure, bigger.axes, sharey=True):
        pairs = [each for each in bigger.pairs if each.axis == axis]
        if not pairs:
            style.nothing_here(ax, "fewer than two sizes have ended")
            continue
        steps, after = bigger.collapses[axis].steps, bigger.collapses[axis].half_drop_step
        style.faint_grid(ax)
        ax.axhline(0, color=style.INK, linewidth=0.9)
        ax.axvline(after, **style.DOTTED, alpha=0.5, linewidth=1)
        style.step_ticks(ax)
        for place, each in enumerate(pairs):
            colour, (smaller, larger) = style.size_colour(place + 1, len(pairs) + 1), each.labels
            label = f"{larger} − {smaller}: {each.crossing.count}"
            style.plot_steps(ax, steps, each.difference, color=colour, linewidth=1.3, label=label)
            for step in each.crossing.steps:
                ax.plot([step], [0], marker="x", color=colour, markersize=7, markeredgewidth=1.6)
            late += [abs(value) for step, value in zip(steps, each.difference, strict=True) if step >= after]
        style.legend_above(ax)
        ax.set_xlabel("step")
    figure.axes[0].set_ylabel("larger − smaller (nats)")
    reach = 1.2 * (max(value for value in late if not math.isnan(value)) or 0.01)
    figure.axes[0].set_ylim(-reach, reach)
