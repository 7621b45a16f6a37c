"""Loss over log2 learning rate and log2 init std at every size: does the optimum stay at the base's?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from expertp.analysis.curve_fit import CurveFit, fit_curve, pooled_noise
from expertp.analysis.curves import Curve, curve, curves
from expertp.analysis.verdict import Verdict
from expertp.figures import style
from expertp.figures.labels import (
    BASE,
    HP_TITLES,
    LOSS,
    LOSS_COLUMNS,
    LossSummary,
    as_drawn,
    axis_title,
    seeds_label,
    summarize,
)
from expertp.figures.losses import LEVEL, strip_above
from expertp.figures.save import FigureData, Value
from expertp.figures.style import Axes, Figure
from expertp.study.cells import Arm, Size, swept_on
from expertp.study.spec import HP, HPS
from expertp.study.table import StudyTable

# The loss axis ends at this quantile of all medians: losses far above the best say nothing about the minimum.
SHOWN = 0.85
# Rows of a figure from which panels are left out.
MOST_ROWS = 2


@dataclass(frozen=True)
class Line:
    """The curve of one size; `place` is its index among all sizes of the axis, and their number."""

    label: str
    place: tuple[int, int]
    curve: Curve
    star: CurveFit | None

    @property
    def losses(self) -> dict[float, LossSummary]:
        """The losses at each value of the hyperparameter, log2, over the seeds that can be compared."""
        stopped = self.curve.n_stopped or (0,) * len(self.curve.losses)
        return dict(zip(self.curve.log2_values, map(summarize, self.curve.compared, stopped), strict=True))

    @property
    def colour(self) -> str:
        """The colour of the size."""
        return style.size_colour(*self.place)


@dataclass(frozen=True)
class Panel:
    """All sizes of one axis in one arm, over one hyperparameter; `lines` is empty where nothing is swept."""

    axis: str
    arm: Arm
    hp: HP
    lines: tuple[Line, ...]
    base_optimum: float | None

    @property
    def losses(self) -> list[LossSummary]:
        """The losses at all values of all sizes."""
        return [each for line in self.lines for each in line.losses.values()]

    @property
    def has_losses(self) -> bool:
        """Whether any run has ended."""
        return any(each.runs for each in self.losses)


@dataclass(frozen=True)
class CurvesData(FigureData):
    """Panels with one row per hyperparameter, on one range of losses.

    Args:
        panels: row by row.
        width: panels per row.
        left_out: panels without losses; they are not drawn.
        reference: arm whose best loss is drawn as a line in all panels of an axis; None: no such line.
    """

    columns = ("axis", "arm", "hp", "size", "scale", "log2_value", *LOSS_COLUMNS, "log2_optimum", "optimum_edge")
    panels: tuple[Panel, ...]
    width: int
    left_out: tuple[Panel, ...] = ()
    reference: Arm | None = None

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows of panels."""
        return self.width, math.ceil(len(self.panels) / self.width)

    @property
    def has_losses(self) -> bool:
        """Whether any run has ended."""
        return any(each.has_losses for each in self.panels)

    def records(self) -> Iterator[Sequence[Value]]:
        """Return one row per grid point."""
        for panel in self.panels:
            for line in panel.lines:
                size = (line.curve.size.value_on(line.curve.axis), line.curve.size.scale)
                star = (line.star.optimum.value, line.star.edge) if line.star else (None, None)
                for value, losses in line.losses.items():
                    yield panel.axis, panel.arm.name, panel.hp, *size, value, *losses.numbers.values(), *star


def data(table: StudyTable, verdicts: Sequence[Verdict]) -> CurvesData:
    """Gather the curves of the study's own arm: one row per hyperparameter, one column per axis with a swept size."""
    hps = [hp for hp in HPS if any(hp in swept_on(table.study, axis) for axis in table.axes)]
    compared = [axis for axis in table.axes if any(len(curves(table, axis, table.own, hp)) > 1 for hp in hps)]
    axes = compared or table.axes
    panels = [panel(table, axis, table.own, hp, verdicts) for hp in hps for axis in axes]
    return _arranged([(each,) for each in panels], len(axes))


def arm_data(table: StudyTable, arm: Arm, verdicts: Sequence[Verdict]) -> CurvesData | None:
    """Gather an arm's curves beside the study's own, axis by axis; None where the study sweeps none of them."""
    swept = {(axis, hp) for axis in table.axes for hp in HPS if curves(table, axis, arm, hp)}
    axes = [axis for axis in table.axes if any((axis, hp) in swept for hp in HPS)]
    pairs = [
        tuple(panel(table, axis, each, hp, verdicts) for each in (table.own, arm))
        for hp in HPS
        if any((axis, hp) in swept for axis in axes)
        for axis in axes
    ]
    return _arranged(pairs, len(axes), arm) if pairs else None


def _arranged(groups: Sequence[tuple[Panel, ...]], per_row: int, reference: Arm | None = None) -> CurvesData:
    """Arrange groups of neighbouring panels; those in which the last one has no losses are left out.

    A row has `per_row` groups, unless groups are left out and another number fills the rows better.
    """
    shown = [group for group in groups if group[-1].has_losses] or groups
    if len(shown) < len(groups):
        fewest = math.ceil(len(shown) / MOST_ROWS)
        per_row = min(range(fewest, per_row + 1), key=lambda number: (-len(shown) % number, -number))
    gone = [group[-1] for group in groups if group not in shown]
    panels = tuple(each for group in shown for each in group)
    return CurvesData(panels, per_row * len(groups[0]), tuple(gone), reference)


def base_data(table: StudyTable, hp: HP, labels: Mapping[Arm, str]) -> CurvesData:
    """Gather the curves of the base in several arms, with their labels, in one panel."""
    axis = table.axes[0]
    swept = {label: curve(table, axis, table.base(axis), arm, hp) for arm, label in labels.items()}
    return named_data(BASE, {hp: {label: (found, None) for label, found in swept.items() if found}})


def named_data(axis: str, named: Mapping[HP, Mapping[str, tuple[Curve, CurveFit | None]]]) -> CurvesData:
    """Gather curves of several studies, with their labels, in one panel per hyperparameter; the first is the base's."""
    panels = []
    for hp, found in named.items():
        places = [(place, len(found)) for place in range(len(found))]
        lines = [Line(label, place, *each) for place, (label, each) in zip(places, found.items(), strict=True)]
        base = lines[0].star
        panels.append(Panel(axis, lines[0].curve.arm, hp, tuple(lines), base.optimum.value if base else None))
    return CurvesData(tuple(panels), len(panels))


def panel(table: StudyTable, axis: str, arm: Arm, hp: HP, verdicts: Sequence[Verdict]) -> Panel:
    """Gather one panel, with the optima of the verdicts; those of an arm without a verdict are estimated."""
    found, sizes = curves(table, axis, arm, hp), table.sizes(axis)
    fits: Mapping[Size, CurveFit | None]
    judged = [each.fits for each in verdicts if (each.axis, each.hp) == (axis, hp) and arm == table.own]
    if judged:
        fits = judged[0]
    else:
        noise = pooled_noise(found)
        fits = {each.size: fit_curve(each, noise) for each in found}
    lines = [
        Line(each.size.label_on(axis), (sizes.index(each.size), len(sizes)), each, fits.get(each.size))
        for each in found
    ]
    base = fits.get(table.base(axis))
    return Panel(axis, arm, hp, tuple(lines), base.optimum.value if base else None)


def draw(figure: Figure, curves: CurvesData) -> None:
    """Draw all panels on one range of losses."""
    from matplotlib.ticker import MaxNLocator

    columns, rows = (int(number) for number in curves.shape)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    frame = _frame(curves.panels)
    seeds = seeds_label(each.runs for panel in curves.panels for each in panel.losses if each.runs)
    for row, axes in enumerate(grid):
        panels = curves.panels[row * columns : (row + 1) * columns]
        for ax in axes[len(panels) :]:
            ax.remove()
        axes = axes[: len(panels)]
        for ax, each in zip(axes, panels, strict=True):
            if curves.reference is not None:
                ax.set_title(as_drawn(f"{each.arm.name}, {each.axis}"))
            elif row == 0 or curves.left_out:
                ax.set_title(as_drawn(axis_title(each.axis)))
            _draw_panel(ax, each, frame, _best_of(curves, each.axis))
        first = next((ax for ax, each in zip(axes, panels, strict=True) if each.has_losses), axes[0])
        first.set_ylabel(f"{LOSS},\nmedian of {seeds}")
        first.tick_params(labelleft=True)
    # No tick next to the line at the end of the range.
    last = frame.high - 0.05 * (frame.high - frame.low)
    ticks = MaxNLocator(5).tick_values(frame.low, frame.high)
    grid[0][0].set_yticks([float(tick) for tick in ticks if frame.low <= tick <= last])
    grid[0][0].set_ylim(frame.low, frame.top)


class _Frame(NamedTuple):
    """The range of losses, low to high, and a strip above it up to top for higher losses and runs without one."""

    low: float
    high: float
    top: float


def _frame(panels: Sequence[Panel]) -> _Frame:
    low, high = loss_range(panels)
    levels = max((len(marks) for each in panels for marks in _marks(each, high).values()), default=0)
    return _Frame(low, high, strip_above(low, high, levels) if levels else high)


def _marks(each: Panel, high: float) -> dict[float, list[tuple[Line, str]]]:
    """Return the marks in the strip above each value: that of runs without a loss, or a triangle for a higher loss."""
    marks: dict[float, list[tuple[Line, str]]] = {}
    for line in each.lines:
        for value, losses in line.losses.items():
            if losses.mark or (losses.median or 0) > high:
                marks.setdefault(value, []).append((line, losses.mark or "▲"))
    return marks


def _best_of(curves: CurvesData, axis: str) -> float | None:
    """Return the best loss of the reference arm on an axis."""
    panels = [each for each in curves.panels if each.arm == curves.reference and each.axis == axis]
    return min((loss.median for each in panels for loss in each.losses if loss.median is not None), default=None)


def _draw_panel(ax: Axes, each: Panel, frame: _Frame, best: float | None) -> None:
    if not each.has_losses:
        style.nothing_here(ax, "not swept" if not each.lines else "no run has ended")
        return
    style.faint_grid(ax)
    ax.set_xlabel(HP_TITLES[each.hp])
    style.log2_ticks(ax, [value for line in each.lines for value in line.losses])
    if frame.top > frame.high:
        ax.axhline(frame.high, color=style.INK, alpha=0.35, linewidth=0.8)
    if each.base_optimum is not None:
        ax.vlines(each.base_optimum, frame.low, frame.high, **style.DOTTED, alpha=0.6, linewidth=1.1)
    if best is not None:
        ax.axhline(best, color=style.INK, alpha=0.8, linewidth=1.0, linestyle=(0, (5, 3)))
    for line in each.lines:
        _draw_line(ax, line, frame)
    for value, marks in _marks(each, frame.high).items():
        for level, (line, text) in enumerate(marks):
            ax.annotate(
                text, (value, frame.high), xytext=(0, 1.5 + LEVEL * level), textcoords="offset points", ha="center",
                va="bottom", fontsize=6 if text == "▲" else 8, color=line.colour,
            )  # fmt: skip
    style.legend_above(ax)


def _draw_line(ax: Axes, line: Line, frame: _Frame) -> None:
    from matplotlib.patches import Rectangle

    x, losses = np.asarray(line.curve.log2_values), line.losses.values()
    median, low, high = (
        np.array([getattr(each, part) for each in losses], float) for part in ("median", "low", "high")
    )
    drawn = [
        ax.fill_between(x, low, high, where=~np.isnan(median), color=line.colour, alpha=style.BAND, linewidth=0),
        ax.vlines(x, low, high, color=line.colour, alpha=0.6, linewidth=1.0),
        ax.plot(x, median, color=line.colour, marker=style.marker(line.place[0]), label=line.label)[0],
    ]
    if line.star:
        ax.plot(
            [line.star.optimum.value], [line.star.loss], marker="*", markersize=12, color=line.colour, linestyle="none",
            markeredgecolor=style.INK, markeredgewidth=0.7, zorder=5,
        )  # fmt: skip
    if frame.top > frame.high:
        for artist in drawn:  # not into the strip
            height = frame.high - frame.low
            artist.set_clip_path(Rectangle((0, frame.low), 1, height, transform=ax.get_yaxis_transform()))


def loss_range(panels: Sequence[Panel]) -> tuple[float, float]:
    """Return the range of losses to show: all near the minima, without those far above."""
    losses = [each for panel in panels for each in panel.losses]
    lows = [each.low for each in losses if each.low is not None]
    lows += [line.star.loss for panel in panels for line in panel.lines if line.star]
    medians = [each.median for each in losses if each.median is not None]
    if not lows or not medians:
        return 0.0, 1.0
    low, high = min(lows), float(np.quantile(medians, SHOWN))
    room = max(high - low, 0.02)
    return low - 0.06 * room, high + 0.12 * room
