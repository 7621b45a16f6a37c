"""Style of all figures: sizes, fonts, and colours that work on light and dark pages and for colour-blind readers.

Text, frames and grids are drawn in `INK`, a colour that nothing else uses. A page replaces it by its text colour, so
that one drawing serves light and dark. Colour never carries information alone: sizes also differ by marker and label.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from expertp.figures.labels import as_drawn, axis_title, minus, thinned
from expertp.util.text import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:
    Axes = Figure = Any  # matplotlib is imported when something is drawn

INK = "#24292f"
# From small to large sizes. Each has a contrast of at least 3 to the light and to the dark page.
SIZE_COLOURS = ("#2f7fc4", "#1f9488", "#98871c", "#cf6a1f", "#c8475f")
MARKERS = ("o", "s", "^", "D", "v")
OURS, OTHER, RETUNED = "#2f7fc4", "#cf6a1f", "#98871c"
PASS, FAIL, UNDECIDED = "#1f9488", "#c8475f", "#98871c"
FAINT, BAND = 0.14, 0.16
DOTTED: dict[str, Any] = {"color": INK, "linestyle": (0, (1, 1.5))}

RC: dict[Any, Any] = {  # matplotlib's stubs want keys that are literals
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so every machine measures the same widths
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.linewidth": 0.8,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "expertp",
    "figure.dpi": 96,
}

PANEL_HEIGHT = 2.35
# Width of a letter of a label, of the space between two labels, and of the line in a legend entry, in inches.
LETTER, SPACE, HANDLE = 0.085, 0.06, 0.3
# Width in inches by number of columns; the largest fills the page.
WIDTHS = {1: 5.6, 2: 7.6, 3: 9.6}
LARGEST_WIDTH = 11.4


def new_figure(columns: float, rows: float = 1, height: float = PANEL_HEIGHT) -> Figure:
    """Return an empty figure with space for some columns and rows of panels."""
    from matplotlib.figure import Figure

    width = WIDTHS.get(round(columns), LARGEST_WIDTH)
    return Figure(figsize=(width, rows * height + 0.55), layout="constrained")


def columns(
    figure: Figure, axes: Sequence[str], heights: Sequence[float] = (1,), **shared: Any
) -> list[tuple[str, Sequence[Axes]]]:
    """Return each axis of a study with its column of panels, which has the axis as title."""
    grid = figure.subplots(len(heights), len(axes), squeeze=False, height_ratios=heights, **shared)
    for ax, axis in zip(grid[0], axes, strict=True):
        ax.set_title(as_drawn(axis_title(axis)))
    return [(axis, list(column)) for axis, column in zip(axes, grid.T, strict=True)]


def size_colour(place: int, of: int) -> str:
    """Return the colour of the size at index `place` among `of` sizes; the whole range of colours is used."""
    if of <= 1:
        return SIZE_COLOURS[0]
    return SIZE_COLOURS[round(place * (len(SIZE_COLOURS) - 1) / (of - 1))]


def marker(place: int) -> str:
    """Return the marker of the size at an index."""
    return MARKERS[place % len(MARKERS)]


def faint_grid(ax: Axes) -> None:
    """Draw faint horizontal grid lines."""
    ax.grid(True, axis="y", color=INK, alpha=FAINT, linewidth=0.7)


def log2_ticks(ax: Axes, values: Sequence[float]) -> None:
    """Show a whole log2 grid, with ticks at integers, every other one where there are many."""
    room = 0.05 * (max(values) - min(values)) + 0.1
    ax.set_xlim(min(values) - room, max(values) + room)
    whole = sorted({round(value) for value in values})
    step = 1 if len(whole) <= 8 else 2
    ax.set_xticks(whole[::step], [minus(str(value)) for value in whole[::step]])


def scale_ticks(ax: Axes, scales: Sequence[float]) -> None:
    """Make the x axis logarithmic, with the ticks "1×", "2×" at the given scales."""
    values = sorted(set(scales))
    x_ticks(ax, values, [f"{value:.3g}×" for value in values], (values[0] / 1.25, values[-1] * 1.25))


def parameter_ticks(ax: Axes, counts: Sequence[int]) -> None:
    """Make the x axis logarithmic over numbers of parameters, with up to five round ticks, also within a decade."""
    low, high = 0.9 * min(counts), 1.1 * max(counts)
    round_numbers = [digit * 10.0**power for power in range(2, 13) for digit in (1, 1.5, 2, 3, 4, 5, 7)]
    ticks: list[float] = []
    for number in round_numbers:
        if low <= number <= high and (not ticks or number / ticks[-1] > (high / low) ** 0.2):
            ticks.append(number)
    x_ticks(ax, ticks, [count(number) for number in ticks], (low, high))


def x_ticks(ax: Axes, ticks: Sequence[float], labels: Sequence[str], limits: tuple[float, float]) -> None:
    """Make the x axis logarithmic between two limits, with the given ticks only, and labels where there is room."""
    ax.set_xscale("log", base=2)
    inches = panel_width(ax) / math.log2(limits[1] / limits[0])
    shown, end = [], -math.inf
    for tick, label in zip(ticks, labels, strict=True):
        centre, half = inches * math.log2(tick), (len(label) * LETTER + SPACE) / 2
        has_room = centre - half >= end
        end = centre + half if has_room else end
        shown.append(label if has_room else "")
    ax.set_xticks(ticks, shown)
    ax.xaxis.set_minor_locator(_no_ticks())
    ax.set_xlim(limits)


def panel_width(ax: Axes) -> float:
    """Return about how wide a panel is before the layout is known, in inches."""
    place = ax.get_subplotspec()
    columns = place.get_gridspec().ncols if place else 1
    return 0.8 * float(ax.figure.bbox.width / ax.figure.dpi) / columns


def legend_above(ax: Axes) -> None:
    """Put the legend of a panel between its title and its frame, where it hides nothing, in as many columns as fit."""
    labels = ax.get_legend_handles_labels()[1]
    entry = max(map(len, labels), default=0) * LETTER + HANDLE
    columns = max(1, min(len(labels), int(panel_width(ax) / entry)))
    ax.set_title(ax.get_title(loc="left"), pad=6 + 14 * math.ceil(len(labels) / columns))
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(-0.04, 0.99),
        ncols=columns,
        handlelength=1.1,
        columnspacing=0.9,
        handletextpad=0.35,
        borderaxespad=0.1,
    )


def figure_legend(
    figure: Figure,
    handles: Mapping[str, Any] | None = None,
    loc: Literal["outside upper left", "outside lower left"] = "outside upper left",
) -> None:
    """Put a common legend above or below all panels, in as many columns as fit, by default of all with a label."""
    handles = handles_of(figure.axes) if handles is None else handles
    widest = max((len(label) for label in handles), default=0) * 0.075 + 0.6
    columns = max(1, min(len(handles), int(figure.get_figwidth() / widest)))
    figure.legend(list(handles.values()), list(handles), loc=loc, ncols=columns, columnspacing=1.4)


def handles_of(axes: Iterable[Axes]) -> dict[str, Any]:
    """Return the legend handles of all panels by label."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return found


def step_ticks(ax: Axes) -> None:
    """Make the x axis logarithmic, with training steps as plain numbers."""
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    ax.set_xscale("log")
    ax.xaxis.set_minor_locator(_no_ticks())
    ax.xaxis.set_major_locator(LogLocator(10, numticks=6))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def plot_steps(ax: Axes, steps: Sequence[int], values: Sequence[float], **look: Any) -> None:
    """Draw a long series over training steps with as many points as can be seen."""
    shown = thinned(steps)
    ax.plot(np.asarray(steps, float)[shown], np.asarray(values)[shown], **look)


def percent_ticks(ax: Axes) -> None:
    """Write fractions on the y axis as percentages."""
    from matplotlib.ticker import FuncFormatter

    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: percentage(value)))


def percentage(share: float) -> str:
    """Write a fraction as a percentage, without trailing zeros.

    >>> percentage(0.1), percentage(-0.025)
    ('10%', '−2.5%')
    """
    return minus(f"{100 * share:.6g}%")


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def nothing_here(ax: Axes, text: str, *below: Axes) -> None:
    """Fill a panel without data with a text, so that it is not mistaken for an empty result; frame those below it."""
    for each in (ax, *below):
        # Not set_yticks: panels that share the axis would lose theirs.
        each.tick_params(left=False, labelleft=False, bottom=False, labelbottom=False)
        for spine in each.spines.values():
            spine.set(visible=True, alpha=0.25, linestyle=(0, (3, 3)))
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", alpha=0.7, fontsize=9, wrap=True)
