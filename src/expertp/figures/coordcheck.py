"""The coordinate check: size against scale for every module, a column per axis and a row per check.

Sizes are relative to the base, so all lines start at 1 and have the slopes of the check. Thick lines are slopes that
fail; grey areas show the tolerance around slope 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from expertp.coordcheck.slopes import CHECKS, EXPECTED, TOLERANCES, Check, CoordinateCheck, Sizes, SlopeVerdict
from expertp.figures import style
from expertp.figures.labels import axis_title
from expertp.figures.save import FigureData, Value
from expertp.figures.style import Axes, Figure
from expertp.study.cells import BASE_SCALE

ROW_TITLES: dict[Check, str] = {
    "init": "size at init",
    "size": "size after steps",
    "effective": "(W_t−W_0) x_t",
    "propagated": "W_0 (x_t−x_0)",
}
# Modules have the same look in every figure; neighbours differ in colour and marker.
LOOKS = {
    module: (style.SIZE_COLOURS[place % len(style.SIZE_COLOURS)], style.MARKERS[(place // 3) % len(style.MARKERS)])
    for place, module in enumerate(EXPECTED)
}


@dataclass(frozen=True)
class ModuleLine:
    """Sizes of one module along an axis by scale, relative to the base: geometric mean over seeds with all scales."""

    axis: str
    check: Check
    module: str
    sizes: Mapping[float, float]
    verdict: SlopeVerdict


@dataclass(frozen=True)
class CoordcheckData(FigureData):
    """All lines, and the number of diverged runs per axis."""

    columns = ("axis", "check", "module", "scale", "relative_size")
    height = len(CHECKS)
    axes: tuple[str, ...]
    lines: tuple[ModuleLine, ...]
    diverged: Mapping[str, int]

    def records(self) -> Iterator[Sequence[Value]]:
        """Return one row per point that is drawn."""
        for line in self.lines:
            for scale, size in line.sizes.items():
                yield line.axis, line.check, line.module, scale, size


def data(check: CoordinateCheck, sizes: Sizes) -> CoordcheckData:
    """Return the data of the figure from a check and its sizes (`coordcheck.settled_sizes`)."""
    lines = []
    for slope in check.slopes:
        # All runs are measured at init, also those that diverge later.
        scales = sorted({scale for each in sizes[slope.axis, "stream", "init"].values() for scale in each})
        found = sizes[slope.axis, slope.module, slope.check].values()
        by_seed = [each for each in found if len(each) == len(scales) and min(each.values()) > 0]
        if by_seed:
            means = {scale: geometric_mean(each[scale] / each[BASE_SCALE] for each in by_seed) for scale in scales}
            lines.append(ModuleLine(slope.axis, slope.check, slope.module, means, slope.verdict))
    axes = tuple(dict.fromkeys(slope.axis for slope in check.slopes))
    diverged = {axis: sum(each.axis == axis for each in check.diverged) for axis in axes}
    return CoordcheckData(axes, tuple(lines), diverged)


def draw(figure: Figure, found: CoordcheckData) -> None:
    """Draw a column per axis and a row per check."""
    from matplotlib.lines import Line2D

    columns = style.columns(figure, found.axes, (1,) * len(CHECKS), sharey="row", sharex="col")
    for axis, panels in columns:
        for ax, check in zip(panels, CHECKS, strict=True):
            lines = [line for line in found.lines if (line.axis, line.check) == (axis, check)]
            _draw_panel(ax, lines, TOLERANCES[check])
        if found.diverged[axis]:
            panels[0].set_title(f"{axis_title(axis)}, {found.diverged[axis]} diverged")
        panels[-1].set_xlabel("scale")
    for ax, title in zip(columns[0][1], ROW_TITLES.values(), strict=True):
        ax.set_ylabel(f"{title}\nrelative to base")
    shown = [module for module in EXPECTED if any(line.module == module for line in found.lines)]
    handles = [Line2D([], [], color=LOOKS[module][0], marker=LOOKS[module][1], linewidth=1) for module in shown]
    figure.legend(handles, shown, loc="outside lower center", ncols=7)


def _draw_panel(ax: Axes, lines: Sequence[ModuleLine], tolerance: float) -> None:
    if not lines:
        style.nothing_here(ax, "no seed has all scales")
        return
    scales = list(lines[0].sizes)
    style.faint_grid(ax)
    style.scale_ticks(ax, scales)
    ax.set_yscale("log", base=2)
    low, high = ([scale ** (sign * tolerance) for scale in scales] for sign in (-1, 1))
    ax.fill_between(scales, low, high, color=style.INK, alpha=0.08, linewidth=0)
    for line in lines:
        colour, marker = LOOKS[line.module]
        width = 2.4 if line.verdict == "FAIL" else 1.0
        ax.plot(scales, list(line.sizes.values()), color=colour, marker=marker, markersize=3.5, linewidth=width)
