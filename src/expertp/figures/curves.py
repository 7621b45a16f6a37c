"""Loss over log2 lr and log2 init at every size: does the minimum stay where the base has it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.analysis.curves import Curve, StudyTable
from expertp.analysis.optimum import Optimum, estimate_optimum, pooled_noise
from expertp.figures import style
from expertp.figures.cells import LEVEL, strip_above
from expertp.figures.labels import BASE, HP_TITLES, LOSS, Cell, axis_title, cell, known, seeds_label, size_label
from expertp.study import HP, HPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

# Losses far above the best say nothing about where the minimum is: the axis ends at this share of all cells.
SHOWN = 0.85


@dataclass(frozen=True)
class Star:
    """A fitted optimum."""

    log2_value: float
    loss: float
    edge: str | None


@dataclass(frozen=True)
class Line:
    """The curve of one size, which is at `place` among all sizes of its axis."""

    label: str
    place: tuple[int, int]
    size: float
    scale: float
    log2_values: tuple[float, ...]
    cells: tuple[Cell, ...]
    star: Star | None


@dataclass(frozen=True)
class Panel:
    """All sizes of one axis under one rule set, over one hyperparameter; `lines` is empty where nothing is swept."""

    axis: str
    rules: str
    hp: HP
    lines: tuple[Line, ...]
    base_optimum: float | None
    best_loss: float | None

    @property
    def has_losses(self) -> bool:
        """Whether any run has ended."""
        return any(each.n or each.diverged for line in self.lines for each in line.cells)


@dataclass(frozen=True)
class CurvesData:
    """Panels in rows of one hyperparameter each, on one range of losses.

    Args:
        panels: row by row.
        columns: panels a row.
        reference: rule set whose best loss is drawn across its panels and their neighbours; None: no such line.
    """

    panels: tuple[Panel, ...]
    columns: int
    reference: str | None = None

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return self.columns, len(self.panels) // self.columns

    @property
    def has_losses(self) -> bool:
        """Whether any run has ended."""
        return any(each.has_losses for each in self.panels)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per cell."""
        return [
            {
                "axis": panel.axis,
                "rules": panel.rules,
                "hp": panel.hp,
                "size": line.size,
                "scale": line.scale,
                "log2_value": value,
                **each.numbers,
                "log2_optimum": line.star.log2_value if line.star else None,
                "optimum_edge": line.star.edge if line.star else None,
            }
            for panel in self.panels
            for line in panel.lines
            for value, each in zip(line.log2_values, line.cells, strict=True)
        ]


def data(table: StudyTable, optima: Mapping[tuple[str, HP], Mapping[float, Optimum]]) -> CurvesData:
    """Gather the curves of the study's own rule set: a row per hyperparameter, a column per axis."""
    study = table.study
    hps = [hp for hp in HPS if any(hp in study.sweep(axis) for axis in study.axis_names)]
    panels = [
        panel(table, axis, study.hps.rules, hp, optima.get((axis, hp))) for hp in hps for axis in study.axis_names
    ]
    return CurvesData(tuple(panels), len(study.axis_names))


def contrast_data(
    table: StudyTable, rules: str, optima: Mapping[tuple[str, HP], Mapping[float, Optimum]]
) -> CurvesData | None:
    """Gather a contrast's curves beside the study's own, axis by axis; None where the study sweeps none of them."""
    study = table.study
    axes = [axis for axis in study.axis_names if any(table.curves(axis, rules, hp) for hp in HPS)]
    hps = [hp for hp in HPS if any(table.curves(axis, rules, hp) for axis in axes)]
    panels = [
        each
        for hp in hps
        for axis in axes
        for each in (
            panel(table, axis, study.hps.rules, hp, optima.get((axis, hp))),
            panel(table, axis, rules, hp, None),
        )
    ]
    return CurvesData(tuple(panels), 2 * len(axes), rules) if panels else None


def base_data(table: StudyTable, hp: HP, names: Mapping[str, str]) -> CurvesData:
    """Gather the base's own curves under several contrasts in one panel; names are what the picture calls them."""
    axis = table.study.axis_names[0]
    found = {label: (curve, None) for name, label in names.items() if (curve := table.curve(axis, 1.0, name, hp))}
    return named_data(BASE, {hp: found})


def named_data(axis: str, named: Mapping[HP, Mapping[str, tuple[Curve, Optimum | None]]]) -> CurvesData:
    """Set curves of whatever studies beside each other, a panel per hyperparameter; the first is the base's."""
    panels = []
    for hp, curves in named.items():
        lines = tuple(
            Line(label, (place, len(curves)), curve.size, curve.scale, curve.log2_values, _cells(curve), _star(optimum))
            for place, (label, (curve, optimum)) in enumerate(curves.items())
        )
        base = lines[0].star if lines else None
        rules = next((curve.rules for curve, _ in curves.values()), "")
        panels.append(Panel(axis, rules, hp, lines, base.log2_value if base else None, None))
    return CurvesData(tuple(panels), len(panels))


def panel(table: StudyTable, axis: str, rules: str, hp: HP, optima: Mapping[float, Optimum] | None) -> Panel:
    """Gather one panel; optima that nobody has estimated yet are estimated here."""
    curves = table.curves(axis, rules, hp)
    if optima is None and curves:
        noise = pooled_noise(list(curves.values()))
        found = {scale: estimate_optimum(curve, noise) for scale, curve in curves.items()}
        optima = {scale: optimum for scale, optimum in found.items() if optimum is not None}
    optima = optima or {}
    lines = tuple(_line(table, curve, optima.get(scale)) for scale, curve in curves.items())
    medians = [each.median for line in lines for each in line.cells if each.median is not None]
    base = optima.get(1.0)
    return Panel(axis, rules, hp, lines, known(base.log2_value) if base else None, min(medians, default=None))


def _line(table: StudyTable, curve: Curve, optimum: Optimum | None) -> Line:
    label = size_label(table.study, curve.axis, curve.scale)
    scales = list(table.study.models(curve.axis))
    place = (scales.index(curve.scale), len(scales))
    return Line(label, place, curve.size, curve.scale, curve.log2_values, _cells(curve), _star(optimum))


def _cells(curve: Curve) -> tuple[Cell, ...]:
    return tuple(map(cell, curve.losses))


def _star(optimum: Optimum | None) -> Star | None:
    if optimum is None or known(optimum.log2_value) is None or known(optimum.loss) is None:
        return None
    return Star(optimum.log2_value, optimum.loss, optimum.edge)


def draw(figure: Figure, curves: CurvesData) -> None:
    """Draw all panels on one range of losses."""
    columns, rows = (int(number) for number in curves.shape)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    frame = _frame(curves.panels)
    cells = [each for panel in curves.panels for line in panel.lines for each in line.cells]
    seeds = seeds_label(each.runs for each in cells if each.runs)
    for place, each in enumerate(curves.panels):
        row, column = divmod(place, columns)
        ax = grid[row][column]
        if row == 0 or curves.reference is not None:
            title = axis_title(each.axis) if curves.reference is None else f"{each.rules}, {each.axis}"
            ax.set_title(title, pad=20 if each.lines else 6)
        _draw_panel(ax, each, frame, _best_of(curves, each.axis))
        if column == _first_drawn(curves.panels[row * columns : (row + 1) * columns]):
            ax.set_ylabel(f"{LOSS},\nmedian and range of {seeds}")
            ax.tick_params(labelleft=True)
    # None beside the line that ends the range.
    last = frame.high - 0.05 * (frame.high - frame.low)
    ticks = [tick for tick in _round_ticks(frame.low, frame.high) if frame.low <= tick <= last]
    grid[0][0].set_yticks(ticks)
    grid[0][0].set_ylim(frame.low, frame.top)


def _first_drawn(row: Sequence[Panel]) -> int:
    """Return which panel of a row carries the labels of the losses: the first that has any."""
    return next((place for place, each in enumerate(row) if each.has_losses), 0)


@dataclass(frozen=True)
class _Frame:
    """The losses that are shown, and above them a strip for what lies higher or has diverged."""

    low: float
    high: float
    top: float


def _frame(panels: Sequence[Panel]) -> _Frame:
    low, high = loss_range(panels)
    levels = max((len(marks) for each in panels for marks in _marks(each, high).values()), default=0)
    return _Frame(low, high, strip_above(low, high, levels) if levels else high)


def _marks(each: Panel, high: float) -> dict[float, list[tuple[Line, str]]]:
    """Return what stands in the strip above each value: "2/3" for diverged runs, a triangle for a loss above."""
    marks: dict[float, list[tuple[Line, str]]] = {}
    for line in each.lines:
        for value, one in zip(line.log2_values, line.cells, strict=True):
            if one.diverged:
                marks.setdefault(value, []).append((line, one.of))
            elif one.median is not None and one.median > high:
                marks.setdefault(value, []).append((line, "▲"))
    return marks


def _best_of(curves: CurvesData, axis: str) -> float | None:
    """Return the best loss of the reference on an axis."""
    found = [each.best_loss for each in curves.panels if each.rules == curves.reference and each.axis == axis]
    return min((loss for loss in found if loss is not None), default=None)


def _round_ticks(low: float, high: float) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    return [float(tick) for tick in MaxNLocator(5).tick_values(low, high)]


def _draw_panel(ax: Axes, each: Panel, frame: _Frame, best: float | None) -> None:
    if not each.has_losses:
        style.nothing_here(ax, "not swept" if not each.lines else "no run has ended yet")
        return
    style.faint_grid(ax)
    ax.set_xlabel(HP_TITLES[each.hp])
    style.log2_ticks(ax, [value for line in each.lines for value in line.log2_values])
    if frame.top > frame.high:
        ax.axhline(frame.high, color=style.INK, alpha=0.35, linewidth=0.8)
    if each.base_optimum is not None:
        ax.vlines(
            each.base_optimum, frame.low, frame.high, color=style.INK, alpha=0.6, linewidth=1.1,
            linestyle=(0, (1, 1.5)),
        )  # fmt: skip
    if best is not None:
        ax.axhline(best, color=style.INK, alpha=0.8, linewidth=1.0, linestyle=(0, (5, 3)))
    for line in each.lines:
        _draw_line(ax, line, frame)
    for value, marks in _marks(each, frame.high).items():
        for level, (line, text) in enumerate(marks):
            ax.annotate(
                text, (value, frame.high), xytext=(0, 1.5 + LEVEL * level), textcoords="offset points", ha="center",
                va="bottom", fontsize=6 if text == "▲" else 8, color=style.size_colour(*line.place),
            )  # fmt: skip
    style.legend_above(ax)


def _draw_line(ax: Axes, line: Line, frame: _Frame) -> None:
    colour, marker = style.size_colour(*line.place), style.marker(line.place[0])
    x = np.asarray(line.log2_values)
    median, low, high = (
        np.array([np.nan if (value := getattr(each, name)) is None else value for each in line.cells])
        for name in ("median", "low", "high")
    )
    drawn = [
        ax.fill_between(x, low, high, where=~np.isnan(median), color=colour, alpha=style.BAND, linewidth=0),
        ax.vlines(x, low, high, color=colour, alpha=0.6, linewidth=1.0),
        ax.plot(x, median, color=colour, marker=marker, label=line.label)[0],
    ]
    if line.star:
        ax.plot(
            [line.star.log2_value], [line.star.loss], marker="*", markersize=12, color=colour, linestyle="none",
            markeredgecolor=style.INK, markeredgewidth=0.7, zorder=5,
        )  # fmt: skip
    if frame.top > frame.high:
        for artist in drawn:
            artist.set_clip_path(_shown_part(ax, frame))


def _shown_part(ax: Axes, frame: _Frame) -> Rectangle:
    """Return the part of a panel that lies below the strip."""
    from matplotlib.patches import Rectangle

    return Rectangle((0, frame.low), 1, frame.high - frame.low, transform=ax.get_yaxis_transform())


def loss_range(panels: Sequence[Panel]) -> tuple[float, float]:
    """Return the losses to show: all near the minima, and not those far above."""
    lines = [line for panel in panels for line in panel.lines]
    lows = [each.low for line in lines for each in line.cells if each.low is not None]
    lows += [line.star.loss for line in lines if line.star]
    medians = [each.median for line in lines for each in line.cells if each.median is not None]
    if not lows or not medians:
        return 0.0, 1.0
    low, high = min(lows), float(np.quantile(medians, SHOWN))
    room = max(high - low, 0.02)
    return low - 0.06 * room, high + 0.12 * room
