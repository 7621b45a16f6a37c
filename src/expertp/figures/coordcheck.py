"""The coordinate check: size against scale for every module, a column per axis and a row per check.

Sizes are relative to the base's, so that a line's slope is the slope of the check and all lines start at 1. Thick lines
are slopes that say FAIL; grey wedges end at the tolerance around a flat line.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from expertp.coordcheck.slopes import CHECKS, EXPECTED, TOLERANCES, Check, CoordinateCheck, Sizes, Verdict
from expertp.figures import style
from expertp.figures.labels import axis_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_TITLES: dict[Check, str] = {
    "init": "size at init",
    "size": "size after steps",
    "effective": "(W_t−W_0) x_t",
    "propagated": "W_0 (x_t−x_0)",
}
# Modules keep their look in every figure, whichever of them a model has; neighbours differ by colour and by marker.
LOOKS = {
    module: (style.SIZE_COLOURS[place % len(style.SIZE_COLOURS)], style.MARKERS[(place // 3) % len(style.MARKERS)])
    for place, module in enumerate(EXPECTED)
}


@dataclass(frozen=True)
class ModuleLine:
    """Sizes of one module along an axis, relative to the base's: geometric means over seeds that have all scales."""

    axis: str
    check: Check
    module: str
    scales: tuple[float, ...]
    sizes: tuple[float, ...]
    verdict: Verdict


@dataclass(frozen=True)
class CoordcheckData:
    """All lines, and how many runs diverged on each axis."""

    axes: tuple[str, ...]
    lines: tuple[ModuleLine, ...]
    diverged: dict[str, int]

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return len(self.axes), len(CHECKS)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per point that is drawn."""
        return [
            {"axis": line.axis, "check": line.check, "module": line.module, "scale": scale, "relative_size": size}
            for line in self.lines
            for scale, size in zip(line.scales, line.sizes, strict=True)
        ]


def data(check: CoordinateCheck, sizes: Sizes) -> CoordcheckData:
    """Gather what is drawn from a check and its sizes (`coordcheck.settled_sizes`)."""
    lines = []
    for slope in check.slopes:
        # Whatever happens to a run later, it has been measured at init.
        scales = tuple(sorted({scale for each in sizes[slope.axis, "stream", "init"].values() for scale in each}))
        found = sizes[slope.axis, slope.module, slope.check].values()
        by_seed = [each for each in found if len(each) == len(scales) and min(each.values()) > 0]
        if not by_seed:
            continue
        relative = tuple(geometric_mean(each[scale] / each[1.0] for each in by_seed) for scale in scales)
        lines.append(ModuleLine(slope.axis, slope.check, slope.module, scales, relative, slope.verdict))
    axes = tuple(dict.fromkeys(slope.axis for slope in check.slopes))
    diverged = {axis: sum(each.axis == axis for each in check.diverged) for axis in axes}
    return CoordcheckData(axes, tuple(lines), diverged)


def draw(figure: Figure, found: CoordcheckData) -> None:
    """Draw a column per axis and a row per check."""
    grid = figure.subplots(len(CHECKS), len(found.axes), squeeze=False, sharey="row", sharex="col")
    for row, check in enumerate(CHECKS):
        for column, axis in enumerate(found.axes):
            ax = grid[row][column]
            lines = [line for line in found.lines if (line.axis, line.check) == (axis, check)]
            _draw_panel(ax, lines, TOLERANCES[check])
            if row == 0:
                failed = found.diverged[axis]
                ax.set_title(axis_title(axis) + (f", {failed} diverged" if failed else ""))
        grid[row][0].set_ylabel(f"{ROW_TITLES[check]}\nrelative to base")
    for ax in grid[-1]:
        ax.set_xlabel("scale")
    from matplotlib.lines import Line2D

    shown = [module for module in EXPECTED if any(line.module == module for line in found.lines)]
    handles = [Line2D([], [], color=LOOKS[module][0], marker=LOOKS[module][1], linewidth=1) for module in shown]
    figure.legend(handles, shown, loc="outside lower center", ncols=7)


def _draw_panel(ax: Axes, lines: list[ModuleLine], tolerance: float) -> None:
    if not lines:
        style.nothing_here(ax, "nothing was measured at every scale")
        return
    style.faint_grid(ax)
    style.scale_ticks(ax, lines[0].scales)
    ax.set_yscale("log", base=2)
    scales = lines[0].scales
    low, high = ([scale ** (sign * tolerance) for scale in scales] for sign in (-1, 1))
    ax.fill_between(scales, low, high, color=style.INK, alpha=0.08, linewidth=0)
    for line in lines:
        colour, marker = LOOKS[line.module]
        width = 2.4 if line.verdict == "FAIL" else 1.0
        ax.plot(
            line.scales, line.sizes, color=colour, marker=marker, markersize=3.5, linewidth=width, label=line.module
        )
