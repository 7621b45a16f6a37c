"""How far networks lie from the limit, against each of their dimensions, with fitted slopes and those of the error law.

The paper's law is 1/sqrt(N) + 1/sqrt(E) + 1/Ne + N/(Ne E L) + 1/L, and the power -1/6 of the parameters of networks
that grow as it recommends. A dimension whose term is small beside the others' shows no slope.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.figures import style
from expertp.figures.labels import known
from expertp.figures.theory.sizes import NAMES, size_label
from expertp.figures.theory.ticks import log_ticks
from expertp.theory.compare import DIMENSIONS, Approach, Comparison
from expertp.wording import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {
    "N": "N, width of the stream",
    "E": "E, experts",
    "n_hid": "Ne, neurons in an expert",
    "parameters": "parameters",
}
EXPONENTS = {"N": Fraction(-1, 2), "E": Fraction(-1, 2), "n_hid": Fraction(-1), "parameters": Fraction(-1, 6)}


@dataclass(frozen=True)
class ErrorData:
    """All lines.

    Args:
        lines: those of one dimension side by side.
        n_seeds: networks of each size; where they differ, the fewest.
        mc_error: Monte-Carlo error of the limit, relative to f; nan for one replicate.
    """

    lines: tuple[Approach, ...]
    n_seeds: int
    mc_error: float

    @property
    def dimensions(self) -> list[str]:
        """Dimensions of which there are several values."""
        return [each for each in DIMENSIONS if any(line.dimension == each for line in self.lines)]

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        most = max((len(self.of(each)) for each in self.dimensions), default=1)
        return max(1, len(self.dimensions)), 1.2 + 0.08 * most

    def of(self, dimension: str) -> list[Approach]:
        """Return the lines of one dimension."""
        return [line for line in self.lines if line.dimension == dimension]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per point."""
        return [
            {
                "dimension": line.dimension,
                "value": value,
                "N": size.N,
                "E": size.E,
                "n_hid": size.n_hid,
                "error": error,
                "slope": line.slope,
                "seeds": self.n_seeds,
                "mc_error": known(self.mc_error),
            }
            for line in self.lines
            for size, value, error in zip(line.sizes, line.values, line.errors, strict=True)
        ]


def data(comparison: Comparison) -> ErrorData:
    """Take the errors of a comparison along every dimension of which it has several values."""
    return ErrorData(
        lines=comparison.approaches(),
        n_seeds=min((len(each.f_each) for each in comparison.networks.values()), default=0),
        mc_error=comparison.theory.mc_error,
    )


def fixed(line: Approach) -> str:
    """Return the fields that stand still along a line: "E 64, Ne 32"."""
    fields = [field for field in NAMES if len({getattr(size, field) for size in line.sizes}) == 1]
    return size_label(line.sizes[0], fields)


def draw(figure: Figure, found: ErrorData) -> None:
    """Draw a panel per dimension, all on one range of errors."""
    if not found.lines:
        style.nothing_here(figure.subplots(), "the error has no slope: there is one size only")
        return
    grid = figure.subplots(1, len(found.dimensions), squeeze=False, sharey=True)[0]
    for ax, dimension in zip(grid, found.dimensions, strict=True):
        ax.set_title(TITLES[dimension])
        _draw_panel(ax, found.of(dimension), EXPONENTS[dimension])
    grid[0].set_ylabel(f"distance of f to the limit\n(rms, n = {found.n_seeds} seeds{_own_error(found)})")
    errors = [error for line in found.lines for error in line.errors]
    grid[0].set_ylim(min(errors) / 1.15, max(errors) * 1.15)
    log_ticks(grid[0], percent=True)


def _own_error(found: ErrorData) -> str:
    """Say how well the limit itself is known; one replicate does not tell."""
    if math.isnan(found.mc_error):
        return ""
    return f",\nMonte-Carlo error {style.percentage(float(f'{found.mc_error:.1g}'))}"


def _draw_panel(ax: Axes, lines: Sequence[Approach], exponent: Fraction) -> None:
    style.faint_grid(ax)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    for place, line in enumerate(lines):
        colour, marker = style.size_colour(place, len(lines)), style.marker(place)
        ax.plot(line.values, line.errors, color=colour, marker=marker, linestyle="none")
        ends = [line.values[0], line.values[-1]]
        label = f"slope {line.slope:.2f}".replace("-", "\N{MINUS SIGN}") + (f" at {fixed(line)}" if fixed(line) else "")
        # The marker is for the legend only: the line has none.
        ax.plot(ends, [line.fitted(end) for end in ends], color=colour, marker=marker, markevery=[], linewidth=1.2,
                label=label)  # fmt: skip
    _draw_reference(ax, lines, exponent)
    _value_ticks(ax, sorted({value for line in lines for value in line.values}))
    # Below the panel: lines of text would hide what they are about.
    ax.legend(loc="upper left", bbox_to_anchor=(-0.03, -0.12), fontsize=8, handlelength=1.6, borderaxespad=0.1)


def _draw_reference(ax: Axes, lines: Sequence[Approach], exponent: Fraction) -> None:
    """Draw the slope of the error law, from where the highest line begins."""
    start, height = max(((line.values[0], line.fitted(line.values[0])) for line in lines), key=lambda point: point[1])
    ends = np.array([start, max(line.values[-1] for line in lines)])
    ax.plot(
        ends,
        height * (ends / start) ** float(exponent),
        color=style.INK,
        alpha=0.7,
        linewidth=1,
        linestyle=(0, (1, 1.5)),
        label=f"slope {exponent} for reference".replace("-", "\N{MINUS SIGN}"),
    )


def _value_ticks(ax: Axes, values: Sequence[float]) -> None:
    """Put ticks at values that lie far enough apart, and leave some room at both ends."""
    from matplotlib.ticker import NullLocator

    low, high = values[0] / 1.25, values[-1] * 1.25
    ticks: list[float] = []
    for value in values:
        if not ticks or value / ticks[-1] > (high / low) ** 0.2:
            ticks.append(value)
    ax.set_xticks(ticks)
    ax.set_xticklabels([count(value) for value in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(low, high)
