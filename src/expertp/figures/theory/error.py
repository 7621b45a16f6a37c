"""Figure: distance of networks to the limit over each of their dimensions, with fitted slopes and those of the paper.

The paper's error law is 1/sqrt(N) + 1/sqrt(E) + 1/n_hid + N/(n_hid E L) + 1/L, and the power -1/6 of the
number of parameters if networks grow as it recommends. The slope is flat if another dimension dominates the error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from expertp.figures import style
from expertp.figures.labels import minus, seeds_label
from expertp.figures.save import FigureData, Value
from expertp.figures.style import Axes, Figure
from expertp.figures.theory.sizes import FIELDS, size_label
from expertp.figures.theory.ticks import log_ticks, spaced
from expertp.theory.compare import DIMENSIONS, Approach, Comparison
from expertp.util.text import count

TITLES = {
    "N": "N, stream width",
    "E": "E, experts per layer",
    "n_hid": "n_hid, neurons per expert",
    "parameters": "parameters",
}
EXPONENTS = {"N": Fraction(-1, 2), "E": Fraction(-1, 2), "n_hid": Fraction(-1), "parameters": Fraction(-1, 6)}


@dataclass(frozen=True)
class ErrorData(FigureData):
    """Data of the figure.

    Args:
        lines: errors along every dimension.
        n_seeds: networks per size (the smallest number if it varies).
        mc_error: Monte-Carlo error of the limit, relative to f; nan with a single replicate.
    """

    columns = ("dimension", "value", *FIELDS, "error", "slope", "seeds", "mc_error")
    lines: tuple[Approach, ...]
    n_seeds: int
    mc_error: float

    @property
    def dimensions(self) -> list[str]:
        """Dimensions with several values, one panel each."""
        return [each for each in DIMENSIONS if any(line.dimension == each for line in self.lines)]

    @property
    def shape(self) -> tuple[float, float]:
        """Width and height of the figure, in panels."""
        most = max((len(self.of(each)) for each in self.dimensions), default=1)
        return max(1, len(self.dimensions)), 1.2 + 0.08 * most

    def of(self, dimension: str) -> list[Approach]:
        """Return the lines of one dimension."""
        return [line for line in self.lines if line.dimension == dimension]

    def records(self) -> Iterator[Sequence[Value]]:
        """Return one row per point."""
        for line in self.lines:
            for size, value, error in zip(line.sizes, line.values, line.errors, strict=True):
                yield line.dimension, value, *astuple(size), error, line.slope, self.n_seeds, self.mc_error


def data(comparison: Comparison) -> ErrorData:
    """Return the errors of a comparison along every dimension with several values."""
    return ErrorData(
        lines=comparison.approaches(),
        n_seeds=min((len(each.f_each) for each in comparison.networks.values()), default=0),
        mc_error=comparison.theory.mc_error,
    )


def fixed(line: Approach) -> str:
    """Return the fields that are fixed along a line: "E 64, n_hid 32"."""
    fields = [field for field in FIELDS if len({getattr(size, field) for size in line.sizes}) == 1]
    return size_label(line.sizes[0], fields)


def draw(figure: Figure, found: ErrorData) -> None:
    """Draw one panel per dimension with a shared range of errors."""
    if not found.lines:
        style.nothing_here(figure.subplots(), "no slope: the comparison has one size only")
        return
    grid = figure.subplots(1, len(found.dimensions), squeeze=False, sharey=True)[0]
    for ax, dimension in zip(grid, found.dimensions, strict=True):
        ax.set_title(TITLES[dimension])
        _draw_panel(ax, found.of(dimension), EXPONENTS[dimension])
    own = "" if math.isnan(found.mc_error) else style.percentage(float(f"{found.mc_error:.1g}"))
    own_error = f",\nMonte-Carlo error {own}" if own else ""
    grid[0].set_ylabel(f"distance of f to the limit\n(rms, {seeds_label([found.n_seeds])}{own_error})")
    errors = [error for line in found.lines for error in line.errors]
    grid[0].set_ylim(min(errors) / 1.15, max(errors) * 1.15)
    log_ticks(grid[0], percent=True)


def _draw_panel(ax: Axes, lines: Sequence[Approach], exponent: Fraction) -> None:
    style.faint_grid(ax)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    for place, line in enumerate(lines):
        look: dict[str, Any] = {"color": style.size_colour(place, len(lines)), "marker": style.marker(place)}
        ax.plot(line.values, line.errors, **look, linestyle="none")
        ends = [line.values[0], line.values[-1]]
        label = minus(f"slope {line.slope:.2f}") + (f" at {fixed(line)}" if fixed(line) else "")
        # The marker appears in the legend only.
        ax.plot(ends, [line.fitted(end) for end in ends], **look, markevery=[], linewidth=1.2, label=label)
    # The slope of the error law, from the start of the highest line.
    start, height = max(((line.values[0], line.fitted(line.values[0])) for line in lines), key=lambda point: point[1])
    reach = np.array([start, max(line.values[-1] for line in lines)])
    label = minus(f"slope {exponent} for reference")
    ax.plot(reach, height * (reach / start) ** float(exponent), **style.DOTTED, alpha=0.7, linewidth=1, label=label)
    values = sorted({value for line in lines for value in line.values})
    low, high = values[0] / 1.25, values[-1] * 1.25
    ticks = spaced(values, low, high, most=5)
    style.x_ticks(ax, ticks, [count(value) for value in ticks], (low, high))
    # Below the panel, where it hides nothing.
    ax.legend(loc="upper left", bbox_to_anchor=(-0.03, -0.12), fontsize=8, handlelength=1.6, borderaxespad=0.1)
