"""How far the optimum moves with scale, in octaves, with its interval."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.analysis.optimum import Optimum, interval
from expertp.analysis.transfer import AxisVerdict
from expertp.figures import style
from expertp.figures.labels import HP_SHORT, axis_title, known
from expertp.study import HP, StudySpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOOKS: dict[HP, tuple[str, str, float]] = {
    "log2_lr": (style.OURS, "o", 0.97),
    "log2_init_std": (style.CONTRAST, "s", 1.03),
}


@dataclass(frozen=True)
class Shift:
    """The optimum of one scale against the base's, octaves; `edge` where one of the two is only a bound."""

    scale: float
    octaves: float
    low: float
    high: float
    edge: str | None


@dataclass(frozen=True)
class DriftLine:
    """The shifts of one hyperparameter along one axis."""

    axis: str
    hp: HP
    shifts: tuple[Shift, ...]
    per_doubling: float
    ci: tuple[float, float]
    n_seeds: int


@dataclass(frozen=True)
class DriftData:
    """All axes, with half the spacing of the grid and what the study allows per doubling."""

    lines: tuple[DriftLine, ...]
    axes: tuple[str, ...]
    half_grid: float
    allowed: float | None

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return len(self.axes), 1

    @property
    def has_shifts(self) -> bool:
        """Whether any optimum beside the base's is known."""
        return any(shift.scale != 1 for line in self.lines for shift in line.shifts)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per axis, hyperparameter and scale."""
        return [
            {
                "axis": line.axis,
                "hp": line.hp,
                "scale": shift.scale,
                "octaves": shift.octaves,
                "low": known(shift.low),
                "high": known(shift.high),
                "edge": shift.edge,
                "octaves_per_doubling": known(line.per_doubling),
                "seeds": line.n_seeds,
            }
            for line in self.lines
            for shift in line.shifts
        ]


def data(study: StudySpec, verdicts: Sequence[AxisVerdict]) -> DriftData:
    """Take the shifts from the optima of the verdicts."""
    lines = [DriftLine(each.axis, each.hp, _shifts(each), each.drift, each.drift_ci, each.n_seeds) for each in verdicts]
    grid = study.grid("log2_lr")
    spacing = min((b - a for a, b in itertools.pairwise(grid)), default=1.0)
    allowed = study.verdict.drift if study.verdict else None
    return DriftData(tuple(lines), study.axis_names, spacing / 2, allowed)


def _shifts(verdict: AxisVerdict) -> tuple[Shift, ...]:
    base = verdict.optima.get(1.0)
    if base is None or not math.isfinite(base.log2_value):
        return ()
    return tuple(
        _shift(scale, optimum, base)
        for scale, optimum in sorted(verdict.optima.items())
        if math.isfinite(optimum.log2_value)
    )


def _shift(scale: float, optimum: Optimum, base: Optimum) -> Shift:
    octaves = optimum.log2_value - base.log2_value
    if scale == 1.0:
        return Shift(scale, 0.0, 0.0, 0.0, optimum.edge)
    low, high = math.nan, math.nan
    if len(optimum.draws) and len(base.draws):
        low, high = interval(optimum.draws_low - base.draws_high, optimum.draws_high - base.draws_low)
    return Shift(scale, octaves, low, high, optimum.edge or base.edge)


def draw(figure: Figure, drift: DriftData) -> None:
    """Draw a panel per axis."""
    grid = figure.subplots(1, len(drift.axes), squeeze=False)[0]
    for ax, axis in zip(grid, drift.axes, strict=True):
        ax.set_title(axis_title(axis))
        lines = [line for line in drift.lines if line.axis == axis and len(line.shifts) > 1]
        if lines:
            _draw_axis(ax, lines, drift)
        else:
            style.nothing_here(ax, "no optimum yet")
    grid[0].set_ylabel("shift of the optimum (octaves)")
    style.figure_legend(figure, style.handles_of(grid))


def _reach(lines: Sequence[DriftLine], half_grid: float) -> float:
    """Return how far the range goes both ways: each axis has its own, or one that fails would flatten all others."""
    ends = [value for line in lines for shift in line.shifts for value in (shift.octaves, shift.low, shift.high)]
    return max([1.2 * half_grid, *(1.3 * abs(value) for value in ends if math.isfinite(value))])


def _draw_axis(ax: Axes, lines: Sequence[DriftLine], drift: DriftData) -> None:
    top = _reach(lines, drift.half_grid)
    ax.set_ylim(-top, top)
    style.faint_grid(ax)
    scales = sorted({shift.scale for line in lines for shift in line.shifts})
    span = np.array([min(scales) / 1.25, max(scales) * 1.25])
    ax.fill_between(
        span, -drift.half_grid, drift.half_grid, color=style.INK, alpha=0.09, linewidth=0, label="half a grid step"
    )
    ax.axhline(0, color=style.INK, linewidth=0.8)
    if drift.allowed is not None:
        fine = np.geomspace(min(scales), max(scales), 20)
        for sign in (-1, 1):
            ax.plot(
                fine, sign * drift.allowed * np.log2(fine), color=style.INK, alpha=0.6, linewidth=1,
                linestyle=(0, (1, 1.5)), label="allowed by the study" if sign > 0 else None,
            )  # fmt: skip
    for line in lines:
        _draw_line(ax, line, top)
    style.scale_ticks(ax, scales)
    ax.set_xlabel("scale (times the base)")


def _draw_line(ax: Axes, line: DriftLine, top: float) -> None:
    colour, marker, beside = LOOKS[line.hp]
    x = np.array([shift.scale * beside for shift in line.shifts])
    y = np.array([shift.octaves for shift in line.shifts])
    ax.plot(x, y, color=colour, marker=marker, label=f"{HP_SHORT[line.hp]}, 95% interval")
    for place, shift in enumerate(line.shifts):
        low, high = (
            np.clip(value, -2 * top, 2 * top) if not math.isnan(value) else y[place]
            for value in (shift.low, shift.high)
        )
        ax.vlines(x[place], low, high, color=colour, linewidth=1.2)
        if shift.edge:
            # The optimum lies beyond: it points to where the grid ends.
            down = shift.edge == "low"
            ax.annotate(
                "↓" if down else "↑", (x[place], y[place]), xytext=(0, -3 if down else 3), textcoords="offset points",
                ha="center", va="top" if down else "bottom", fontsize=17, color=colour,
            )  # fmt: skip
