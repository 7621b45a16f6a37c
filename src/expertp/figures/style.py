"""How all figures look: colours that read on light and dark paper and by the colour-blind, sizes, fonts.

Text, frames and grids are drawn in `INK`, a colour that nothing else uses: in a page it becomes the page's own text
colour, so that one drawing serves light and dark. Colour never says anything alone: sizes also differ by marker and
have labels at their lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from expertp.wording import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#24292f"
# From small to large. Each has a contrast of at least 3 to white and to the dark page.
SIZE_COLOURS = ("#2f7fc4", "#1f9488", "#98871c", "#cf6a1f", "#c8475f")
MARKERS = ("o", "s", "^", "D", "v")
OURS, CONTRAST, RETUNED = "#2f7fc4", "#cf6a1f", "#98871c"
PASS, FAIL, UNDECIDED = "#1f9488", "#c8475f", "#98871c"
FAINT, BAND = 0.14, 0.16

RC: dict[Any, Any] = {  # matplotlib's stubs want keys that are literals
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: every machine measures the same widths
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
# Inches for so many columns; the widest fills a page of text and figures.
WIDTHS = {1: 5.6, 2: 7.6, 3: 9.6}
LARGEST_WIDTH = 11.4


def new_figure(columns: float, rows: float = 1, height: float = PANEL_HEIGHT) -> Figure:
    """Return an empty figure with room for so many panels; it belongs to no window."""
    from matplotlib.figure import Figure

    width = WIDTHS.get(round(columns), LARGEST_WIDTH)
    return Figure(figsize=(width, rows * height + 0.55), layout="constrained")


def size_colour(place: int, of: int) -> str:
    """Return the colour of the size at a place among so many: ends of the range for the ends of the axis."""
    if of <= 1:
        return SIZE_COLOURS[0]
    return SIZE_COLOURS[round(place * (len(SIZE_COLOURS) - 1) / (of - 1))]


def marker(place: int) -> str:
    """Return the marker of the size at a place."""
    return MARKERS[place % len(MARKERS)]


def faint_grid(ax: Axes) -> None:
    """Draw lines that help the eye and do not hold it."""
    ax.grid(True, axis="y", color=INK, alpha=FAINT, linewidth=0.7)


def log2_ticks(ax: Axes, values: Sequence[float]) -> None:
    """Show all of a log2 grid, runs or not, with one tick at every whole value, thinned where there are many."""
    room = 0.05 * (max(values) - min(values)) + 0.1
    ax.set_xlim(min(values) - room, max(values) + room)
    whole = sorted({round(value) for value in values})
    step = 1 if len(whole) <= 8 else 2
    ax.set_xticks(whole[::step])
    ax.set_xticklabels([str(value).replace("-", "\N{MINUS SIGN}") for value in whole[::step]])


def scale_ticks(ax: Axes, scales: Sequence[float]) -> None:
    """Label a logarithmic axis of scales "1x", "2x", at the scales that there are."""
    ax.set_xscale("log", base=2)
    values = sorted(set(scales))
    ax.set_xticks(values)
    ax.set_xticklabels([f"{value:.3g}×" for value in values])
    ax.xaxis.set_minor_locator(_no_ticks())
    low, high = values[0], values[-1]
    ax.set_xlim(low / 1.25, high * 1.25)


def parameter_ticks(ax: Axes, counts: Sequence[int]) -> None:
    """Make the x axis logarithmic over numbers of parameters, with up to five round ones, be it less than a decade."""
    low, high = 0.9 * min(counts), 1.1 * max(counts)
    round_numbers = [digit * 10.0**power for power in range(2, 13) for digit in (1, 1.5, 2, 3, 4, 5, 7)]
    ticks: list[float] = []
    for number in round_numbers:
        if low <= number <= high and (not ticks or number / ticks[-1] > (high / low) ** 0.2):
            ticks.append(number)
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks)
    ax.set_xticklabels([count(number) for number in ticks])
    ax.xaxis.set_minor_locator(_no_ticks())
    ax.set_xlim(low, high)


def legend_above(ax: Axes) -> None:
    """Name the lines of a panel in one row between its title and its frame, where no line can be hidden."""
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(-0.04, 0.99),
        ncols=max(1, len(ax.get_legend_handles_labels()[1])),
        handlelength=1.1,
        columnspacing=0.9,
        handletextpad=0.35,
        borderaxespad=0.1,
    )


def figure_legend(figure: Figure, handles: Mapping[str, Any]) -> None:
    """Name what all panels share above them, in as many columns as fit."""
    widest = max((len(label) for label in handles), default=0) * 0.075 + 0.6
    columns = max(1, min(len(handles), int(figure.get_figwidth() / widest)))
    figure.legend(list(handles.values()), list(handles), loc="outside upper left", ncols=columns, columnspacing=1.4)


def handles_of(axes: Iterable[Axes]) -> dict[str, Any]:
    """Return what has a label in any of the panels, each label once."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return found


def step_ticks(ax: Axes) -> None:
    """Make the x axis logarithmic and write its steps as plain numbers."""
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    ax.set_xscale("log")
    ax.xaxis.set_minor_locator(_no_ticks())
    ax.xaxis.set_major_locator(LogLocator(10, numticks=6))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def percent_ticks(ax: Axes) -> None:
    """Write fractions on the y axis as percentages."""
    from matplotlib.ticker import FuncFormatter

    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: percentage(value)))


def percentage(share: float) -> str:
    """Write a share as a percentage, without digits that are zero.

    >>> percentage(0.1), percentage(-0.025)
    ('10%', '−2.5%')
    """
    return f"{100 * share:.6g}%".replace("-", "\N{MINUS SIGN}")


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def nothing_here(ax: Axes, text: str) -> None:
    """Fill a panel that has no data with a sentence, so that it cannot be taken for an empty result."""
    # Not set_yticks: panels that share the axis would lose theirs.
    ax.tick_params(left=False, labelleft=False, bottom=False, labelbottom=False)
    for spine in ax.spines.values():
        spine.set_visible(True)
        spine.set_alpha(0.25)
        spine.set_linestyle((0, (3, 3)))
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", alpha=0.7, fontsize=9, wrap=True)
