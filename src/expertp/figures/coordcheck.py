"""The coordinate check: size against scale for every module, a column per axis and a row per check.

Sizes are relative to the base, so all lines start at 1 and have the slopes of the check. The colour of a line is its
expected slope, which a dotted line of that colour shows; the area around it are the slopes within the tolerance. Lines
outside of the area of their colour are red and thick, and their modules are named beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from expertp.coordcheck.slopes import CHECKS, EXPECTED, TOLERANCES, Check, CoordinateCheck, Sizes, SlopeVerdict
from expertp.figures import style
from expertp.figures.labels import as_drawn, axis_title, minus
from expertp.figures.save import FigureData, Value
from expertp.figures.style import Axes, Figure
from expertp.study.cells import BASE_SCALE

ROW_TITLES: dict[Check, str] = {
    "init": "size at init",
    "size": "size after steps",
    "effective": "(W_t−W_0) x_t",
    "propagated": "W_0 (x_t−x_0)",
}
# One per module, the same in every figure.
MODULE_MARKERS = dict(zip(EXPECTED, "os^DvP<>Xphd8H*1234+x|", strict=True))
# By expected slope, the first for 0; red means that a slope is not as expected.
COLOURS = tuple(colour for colour in style.SIZE_COLOURS if colour != style.FAIL)
OUTSIDE: dict[str, Any] = {"color": style.FAIL, "linewidth": 2.4, "zorder": 3}


@dataclass(frozen=True)
class ModuleLine:
    """Sizes of one module along an axis by scale, relative to the base: geometric mean over seeds with all scales."""

    axis: str
    check: Check
    module: str
    sizes: Mapping[float, float]
    expected: tuple[float, float]
    verdict: SlopeVerdict


@dataclass(frozen=True)
class CoordcheckData(FigureData):
    """All lines, and the number of diverged runs per axis."""

    columns = ("axis", "check", "module", "scale", "relative_size")
    height = len(CHECKS)
    axes: tuple[str, ...]
    lines: tuple[ModuleLine, ...]
    diverged: Mapping[str, int]

    @property
    def colours(self) -> dict[tuple[float, float], str]:
        """The colour of every expected range of slopes, by distance from 0."""
        found = sorted(
            {line.expected for line in self.lines} | {(0.0, 0.0)}, key=lambda each: (sum(map(abs, each)), each)
        )
        return {each: COLOURS[place % len(COLOURS)] for place, each in enumerate(found)}

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
            expected = (slope.low, slope.high)
            lines.append(ModuleLine(slope.axis, slope.check, slope.module, means, expected, slope.verdict))
    axes = tuple(dict.fromkeys(slope.axis for slope in check.slopes))
    diverged = {axis: sum(each.axis == axis for each in check.diverged) for axis in axes}
    return CoordcheckData(axes, tuple(lines), diverged)


def draw(figure: Figure, found: CoordcheckData) -> None:
    """Draw a column per axis and a row per check."""
    columns = style.columns(figure, found.axes, (1,) * len(CHECKS), sharey="row", sharex="col")
    for axis, panels in columns:
        for ax, check in zip(panels, CHECKS, strict=True):
            lines = [line for line in found.lines if (line.axis, line.check) == (axis, check)]
            _draw_panel(ax, lines, TOLERANCES[check], found.colours)
        if found.diverged[axis]:
            panels[0].set_title(f"{as_drawn(axis_title(axis))}, {found.diverged[axis]} diverged")
        panels[-1].set_xlabel("scale (times the base)")
    for ax, title in zip(columns[0][1], ROW_TITLES.values(), strict=True):
        ax.set_ylabel(f"{title}\nrelative to base")
    _draw_legends(figure, found)


def _draw_legends(figure: Figure, found: CoordcheckData) -> None:
    """Explain colours above the panels, and markers below them."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    used = {line.expected for line in found.lines}
    meanings: dict[str, Any] = {
        f"expected slope {_range(each)}": Line2D([], [], **_reference(colour))
        for each, colour in found.colours.items()
        if each in used
    }
    meanings["shaded: slopes within the tolerance of it"] = Patch(color=style.INK, alpha=style.BAND, linewidth=0)
    if any(line.verdict == "FAIL" for line in found.lines):
        meanings["outside: not as expected"] = Line2D([], [], **OUTSIDE)
    style.figure_legend(figure, meanings)
    shown = [module for module in EXPECTED if any(line.module == module for line in found.lines)]
    markers = {
        module: Line2D([], [], color=style.INK, marker=MODULE_MARKERS[module], markersize=4, linewidth=0)
        for module in shown
    }
    style.figure_legend(figure, markers, "outside lower left")


def _range(expected: tuple[float, float]) -> str:
    """Write a range of slopes.

    >>> _range((-0.5, 0.0)), _range((0.0, 0.0))
    ('−0.5 to 0', '0')
    """
    low, high = (minus(f"{end:.3g}") for end in expected)
    return low if low == high else f"{low} to {high}"


def _reference(colour: str) -> dict[str, Any]:
    return {"color": colour, "linestyle": (0, (1, 1.5)), "linewidth": 1.4}


def _draw_panel(
    ax: Axes, lines: Sequence[ModuleLine], tolerance: float, colours: Mapping[tuple[float, float], str]
) -> None:
    from matplotlib.ticker import FuncFormatter

    if not lines:
        style.nothing_here(ax, "no seed has all scales")
        return
    scales = list(lines[0].sizes)
    style.faint_grid(ax)
    style.scale_ticks(ax, scales)
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:g}×"))
    for expected in sorted({line.expected for line in lines}):
        low, high = (
            [scale ** (end + sign * tolerance) for scale in scales] for end, sign in zip(expected, (-1, 1), strict=True)
        )
        ax.fill_between(scales, low, high, color=colours[expected], alpha=0.1, linewidth=0)
        for end in dict.fromkeys(expected):
            ax.plot(scales, [scale**end for scale in scales], **_reference(colours[expected]))
    for line in lines:
        look = {"color": colours[line.expected], "linewidth": 1.0} if line.verdict != "FAIL" else OUTSIDE
        sizes = list(line.sizes.values())
        ax.plot(scales, sizes, marker=MODULE_MARKERS[line.module], markersize=4, **look)
        if line.verdict == "FAIL":
            ax.annotate(
                line.module, (scales[-1], sizes[-1]), (-4, 4 if sizes[-1] > 1 else -4), textcoords="offset points",
                ha="right", va="bottom" if sizes[-1] > 1 else "top", color=style.FAIL, fontsize=8,
            )  # fmt: skip
