"""Balance of the load over experts during training, on the full range of possible deviations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from expertp.analysis.balance import LoadBalance, load_balance
from expertp.figures import style
from expertp.figures.labels import axes_with_data, seeds_label, thinned
from expertp.figures.save import FigureData, Value
from expertp.figures.style import Figure
from expertp.study.cells import Size
from expertp.study.table import StudyTable


@dataclass(frozen=True)
class LoadLine:
    """Expert load of one size on an axis."""

    axis: str
    size: Size
    load: LoadBalance

    @property
    def label(self) -> str:
        """The size in the unit of the axis."""
        return self.size.label_on(self.axis)

    @property
    def experts(self) -> int:
        """Number of experts in all layers."""
        return self.size.model.n_layer * self.size.model.n_exp


@dataclass(frozen=True)
class BalanceData(FigureData):
    """Expert load of all sizes; `most` is the largest possible deviation, 1 - kappa."""

    columns = ("axis", "size", "scale", "step", "max_load_deviation", "dead_experts", "experts", "seeds")
    height = 1.6
    axes: tuple[str, ...]
    lines: tuple[LoadLine, ...]
    most: float

    def records(self) -> Iterator[Sequence[Value]]:
        """Return one row per axis, size and drawn step."""
        for line in self.lines:
            for place in thinned(line.load.steps):
                load = (line.load.steps[place], line.load.max_deviation[place], line.load.dead_experts[place])
                yield line.axis, line.label, line.size.scale, *load, line.experts, line.load.n_seeds


def data(table: StudyTable) -> BalanceData:
    """Gather the expert load of the zero-shot runs of the study's own arm."""
    sizes = [(axis, size) for axis in table.axes for size in table.sizes(axis)]
    loads = [(axis, size, load_balance(table.zero_shot_records(axis, size, table.own))) for axis, size in sizes]
    lines = [LoadLine(axis, size, load) for axis, size, load in loads if load]
    axes = axes_with_data(table.axes, {line.axis for line in lines})
    return BalanceData(axes, tuple(lines), max(1.0 - float(size.model.kappa) for _, size in sizes))


def draw(figure: Figure, balance: BalanceData) -> None:
    """Draw the largest deviation in the top row and dead experts in the bottom row, one column per axis."""
    columns = style.columns(figure, balance.axes, (1.4, 1), sharey="row", sharex="col")
    for axis, (upper, lower) in columns:
        found = [line for line in balance.lines if line.axis == axis]
        if not found:
            style.nothing_here(upper, "no zero-shot run has ended", lower)
            continue
        for ax in (upper, lower):
            style.faint_grid(ax)
            style.step_ticks(ax)
        for place, line in enumerate(found):
            colour, load = style.size_colour(place, len(found)), line.load
            style.plot_steps(upper, load.steps, load.max_deviation, color=colour, linewidth=1.1, label=line.label)
            dead = [each / line.experts for each in load.dead_experts]
            style.plot_steps(lower, load.steps, dead, color=colour, linewidth=1.1)
        style.legend_above(upper)
        lower.set_xlabel("step")
    upper, lower = columns[0][1]
    upper.set_ylim(0, balance.most)
    lower.set_ylim(0, 1)
    upper.set_ylabel(f"max |Load − κ|,\nmean of {seeds_label(line.load.n_seeds for line in balance.lines)}")
    lower.set_ylabel("dead experts")
    style.percent_ticks(lower)
