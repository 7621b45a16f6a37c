"""Training curves of all sizes, and their difference from the base's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from expertp.analysis.collapse import FAR_SDS, Collapse, Deviation, collapse
from expertp.analysis.seed_curves import training_losses
from expertp.figures import style
from expertp.figures.labels import axes_with_data, seeds_label, thinned
from expertp.figures.save import FigureData, Value
from expertp.figures.style import Axes, Figure
from expertp.study.cells import Arm, Size
from expertp.study.table import StudyTable

# What the marks of the figure mean.
MARKS = (
    f"grey band: ± {FAR_SDS:g} s.d. over the base's seeds; thin vertical lines: step at which a size leaves the band; "
    "dotted vertical line: step at which the base has completed half of its loss decrease"
)


@dataclass(frozen=True)
class CollapseData(FigureData):
    """One arm on all its axes; `collapses` lacks an axis where the base or all other sizes are missing."""

    columns = ("axis", "arm", "scale", "step", "loss", "relative_to_base", "base_sd", "seeds", "leaves_at")
    height = 1.7
    axes: tuple[str, ...]
    arm: Arm
    base: Size
    collapses: Mapping[str, Collapse]

    def lines(self, axis: str) -> list[Deviation]:
        """Return the training curves of all sizes of an axis by increasing scale, the base among them."""
        found = self.collapses[axis]
        base = Deviation(self.base, found.base, (0.0,) * len(found.base), None, 0.0, found.n_seeds)
        return sorted((base, *found.deviations), key=lambda line: line.size.scale)

    def records(self) -> Iterator[Sequence[Value]]:
        """Return one row per axis, size and drawn step."""
        for axis, found in self.collapses.items():
            for line in self.lines(axis):
                for place in thinned(found.steps):
                    losses = (line.mean[place], line.relative[place], found.base_sd[place])
                    yield (
                        axis, self.arm.name, line.size.scale, found.steps[place], *losses, line.n_seeds, line.leaves_at
                    )  # fmt: skip


def data(table: StudyTable, arm: Arm) -> CollapseData:
    """Compare the zero-shot runs of an arm with the base's, on each axis of the arm."""
    axes, collapses = table.axes_of(arm), {}
    base = table.base(axes[0])
    for axis in axes:
        losses = {size: training_losses(table.zero_shot_records(axis, size, arm)) for size in table.sizes(axis)}
        others = {size: each for size, each in losses.items() if not size.is_base and losses[base].shared_seeds(each)}
        if others:
            collapses[axis] = collapse(losses[base], others)
    return CollapseData(axes_with_data(axes, collapses), arm, base, collapses)


def draw(figure: Figure, curves: CollapseData) -> None:
    """Draw training curves in the top row and differences from the base in the bottom row, one column per axis."""
    columns = style.columns(figure, curves.axes, (1.4, 1), sharey="row", sharex="col")
    reach, seeds = 0.0, list[int]()
    for axis, (upper, lower) in columns:
        if axis not in curves.collapses:
            style.nothing_here(upper, "the base or all other sizes are missing", lower)
            continue
        found, lines = curves.collapses[axis], curves.lines(axis)
        _draw_axis(upper, lower, axis, found, lines)
        is_late = np.asarray(found.steps) > found.steps[-1] / 50
        differences = np.abs([line.relative for line in lines])[:, is_late]
        reach = max(reach, float(np.nanmax(differences, initial=0.0, where=~np.isnan(differences))))
        seeds += [line.n_seeds for line in lines]
    upper, lower = columns[0][1]
    upper.set_ylabel(f"training loss (nats),\nmean of {seeds_label(seeds)}")
    lower.set_ylabel("relative to the base")
    reach = min(0.5, max(0.01, 1.15 * reach))
    lower.set_ylim(-reach, reach)
    style.percent_ticks(lower)


def _draw_axis(upper: Axes, lower: Axes, axis: str, found: Collapse, lines: Sequence[Deviation]) -> None:
    for ax in (upper, lower):
        style.faint_grid(ax)
        style.step_ticks(ax)
        ax.axvline(found.half_drop_step, **style.DOTTED, alpha=0.5, linewidth=1)
    shown = thinned(found.steps)
    with np.errstate(divide="ignore", invalid="ignore"):
        far = (FAR_SDS * np.asarray(found.base_sd) / np.asarray(found.base))[shown]
    lower.fill_between(np.asarray(found.steps, float)[shown], -far, far, color=style.INK, alpha=0.1, linewidth=0)
    for place, line in enumerate(lines):
        colour = style.size_colour(place, len(lines))
        style.plot_steps(upper, found.steps, line.mean, color=colour, linewidth=1.3, label=line.size.label_on(axis))
        style.plot_steps(lower, found.steps, line.relative, color=colour, linewidth=1.3)
        if line.leaves_at is not None:
            lower.axvline(line.leaves_at, color=colour, linewidth=0.8, alpha=0.7)
    style.legend_above(upper)
    lower.set_xlabel("step")
