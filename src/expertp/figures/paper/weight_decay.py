"""Final loss against the whole decay of a training, tau = steps * lr * weight_decay, at several sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from expertp.figures import style
from expertp.figures.cells import draw_cells, strip_of_diverged
from expertp.figures.labels import LOSS, Cell, cell, seeds_label
from expertp.figures.theory.ticks import round_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# How far left of the smallest decay a logarithmic axis has its zero.
ZERO_BELOW = 4.0
# Between neighbouring sizes at one tau, so that their bars do not lie on each other.
BESIDE = 1.05


@dataclass(frozen=True)
class DecayLine:
    """The losses of one size, by increasing tau."""

    label: str
    taus: tuple[float, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class WeightDecayData:
    """All sizes, from small to large."""

    lines: tuple[DecayLine, ...]

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return 2, 1.3

    @property
    def positive(self) -> list[float]:
        """All tau but zero, each once, in order."""
        return sorted({tau for line in self.lines for tau in line.taus if tau > 0})

    @property
    def zero_at(self) -> float:
        """Where zero stands on the logarithmic axis."""
        return min(self.positive, default=1.0) / ZERO_BELOW

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per size and tau."""
        return [
            {
                "size": line.label,
                "tau": tau,
                **each.numbers,
            }
            for line in self.lines
            for tau, each in zip(line.taus, line.cells, strict=True)
        ]


def data(sizes: Mapping[str, Sequence[tuple[float, Sequence[float]]]]) -> WeightDecayData:
    """Sum up losses over seeds, given pairs of tau and losses by the label of a size."""
    lines = []
    for label, pairs in sizes.items():
        ordered = sorted(pairs, key=lambda pair: pair[0])
        lines.append(DecayLine(label, tuple(tau for tau, _ in ordered), tuple(cell(losses) for _, losses in ordered)))
    return WeightDecayData(tuple(lines))


def draw(figure: Figure, decay: WeightDecayData) -> None:
    """Draw a line per size, and losses without decay beside it at the left edge."""
    ax = figure.subplots()
    style.faint_grid(ax)
    ax.set_xscale("log")
    diverged = [line for line in decay.lines if any(each.diverged for each in line.cells)]
    for place, line in enumerate(decay.lines):
        _draw_line(ax, decay, place, diverged.index(line) if line in diverged else 0)
    _tau_ticks(ax, decay)
    if diverged:
        strip_of_diverged([ax], len(diverged))
    ns = [each.runs for line in decay.lines for each in line.cells if each.runs]
    ax.set_xlabel(f"τ = steps × learning rate × weight decay ({seeds_label(ns)})")
    ax.set_ylabel(LOSS)
    style.legend_above(ax)


def _draw_line(ax: Axes, decay: WeightDecayData, place: int, level: int) -> None:
    line, n = decay.lines[place], len(decay.lines)
    beside = BESIDE ** (place - (n - 1) / 2)
    look: dict[str, Any] = {"level": level, "color": style.size_colour(place, n), "marker": style.marker(place)}
    points = list(zip(line.taus, line.cells, strict=True))
    # Zero is infinitely far away on this axis: no line leads there.
    zero = [each for tau, each in points if tau == 0]
    draw_cells(ax, [decay.zero_at * beside] * len(zero), zero, linestyle="none", **look)
    rest = [(tau * beside, each) for tau, each in points if tau > 0]
    draw_cells(ax, [x for x, _ in rest], [each for _, each in rest], label=line.label, **look)


def _tau_ticks(ax: Axes, decay: WeightDecayData) -> None:
    """Write round numbers along the axis and a zero at its left edge, set off by a line."""
    from matplotlib.ticker import NullLocator

    positive = decay.positive or [1.0]
    has_zero = any(0 in line.taus for line in decay.lines)
    ticks = round_numbers(0.99 * positive[0], 1.01 * positive[-1])
    if has_zero:
        ax.axvline(decay.zero_at * ZERO_BELOW**0.5, color=style.INK, alpha=0.5, linewidth=1, linestyle=(0, (1, 1.5)))
    ax.set_xticks(([decay.zero_at] if has_zero else []) + ticks)
    ax.set_xticklabels((["0"] if has_zero else []) + [f"{tick:g}" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim((decay.zero_at if has_zero else positive[0]) / 1.6, positive[-1] * 1.6)
