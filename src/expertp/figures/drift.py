"""Shift of the optimum over scale, in octaves, with its interval."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from expertp.analysis.curve_fit import Edge
from expertp.analysis.verdict import Verdict
from expertp.figures import style
from expertp.figures.labels import axes_with_data, interval_label
from expertp.figures.save import FigureData, Value
from expertp.figures.style import Axes, Figure
from expertp.study.cells import Size, axis_names, grid
from expertp.study.spec import HP, StudySpec
from expertp.util.statistics import Estimate

# Colour, marker and horizontal offset.
LOOKS: dict[HP, tuple[str, str, float]] = {
    "log2_lr": (style.OURS, "o", 0.97),
    "log2_init_std": (style.OTHER, "s", 1.03),
}


class Shift(NamedTuple):
    """Shift of a size's optimum from the base's, octaves; `edge` is set where one of the two is only a bound."""

    octaves: Estimate
    edge: Edge | None


@dataclass(frozen=True)
class DriftData(FigureData):
    """Verdicts of all axes, and half the spacing of the learning-rate grid."""

    columns = ("axis", "hp", "scale", "octaves", "low", "high", "edge", "octaves_per_doubling", "seeds")
    axes: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    half_grid: float

    @property
    def has_shifts(self) -> bool:
        """Whether any optimum other than the base's is known."""
        return any(not size.is_base for each in self.verdicts for size in shifts(each))

    def records(self) -> Iterator[Sequence[Value]]:
        """Return one row per axis, hyperparameter and size."""
        for each in self.verdicts:
            for size, (octaves, edge) in shifts(each).items():
                ends = (octaves.value, octaves.low, octaves.high)
                yield each.axis, each.hp, size.scale, *ends, edge, each.drift.value, each.n_seeds


def data(study: StudySpec, verdicts: Sequence[Verdict]) -> DriftData:
    """Compute shifts from the optima of the verdicts."""
    spacing = min((b - a for a, b in itertools.pairwise(grid(study, "log2_lr"))), default=1.0)
    axes = axes_with_data(axis_names(study), {each.axis for each in verdicts if len(shifts(each)) > 1})
    return DriftData(axes, tuple(verdicts), spacing / 2)


def shifts(verdict: Verdict) -> dict[Size, Shift]:
    """Return the shift of each size whose optimum is known; empty where the base's is unknown."""
    base = verdict.base_fit
    if base is None:
        return {}
    return {
        size: Shift(fit.shift_from(base, verdict.tail), fit.edge or base.edge) for size, fit in verdict.fits.items()
    }


def draw(figure: Figure, drift: DriftData) -> None:
    """Draw one panel per axis."""
    for axis, (ax,) in style.columns(figure, drift.axes):
        found = {each.hp: moved for each in drift.verdicts if each.axis == axis and len(moved := shifts(each)) > 1}
        if found:
            _draw_axis(ax, found, drift)
        else:
            style.nothing_here(ax, "fewer than two optima are known")
    figure.axes[0].set_ylabel("shift of the optimum (octaves)")
    style.figure_legend(figure)


def _draw_axis(ax: Axes, found: Mapping[HP, Mapping[Size, Shift]], drift: DriftData) -> None:
    octaves = [shift.octaves for moved in found.values() for shift in moved.values()]
    ends = [abs(end) for each in octaves for end in (each.value, each.low, each.high) if math.isfinite(end)]
    # One range per axis: one axis that fails would flatten all others.
    top = max(1.2 * drift.half_grid, 1.3 * max(ends))
    ax.set_ylim(-top, top)
    style.faint_grid(ax)
    scales = sorted({size.scale for moved in found.values() for size in moved})
    ax.fill_between(
        [scales[0] / 1.25, scales[-1] * 1.25], -drift.half_grid, drift.half_grid, color=style.INK, alpha=0.09,
        linewidth=0, label="half a grid step",
    )  # fmt: skip
    ax.axhline(0, color=style.INK, linewidth=0.8)
    for hp, moved in found.items():
        _draw_shifts(ax, hp, moved, top, interval_label(drift.verdicts, hp))
    style.scale_ticks(ax, scales)
    ax.set_xlabel("scale (times the base)")


def _draw_shifts(ax: Axes, hp: HP, moved: Mapping[Size, Shift], top: float, label: str) -> None:
    colour, marker, beside = LOOKS[hp]
    x = [size.scale * beside for size in moved]
    values = [shift.octaves.value for shift in moved.values()]
    ax.plot(x, values, color=colour, marker=marker, label=label)
    for place, value, (octaves, edge) in zip(x, values, moved.values(), strict=True):
        low, high = (
            value if math.isnan(end) else np.clip(end, -2 * top, 2 * top) for end in (octaves.low, octaves.high)
        )
        ax.vlines(place, low, high, color=colour, linewidth=1.2)
        if edge:
            # The optimum lies beyond this end of the grid.
            text, away, side = ("↓", -3, "top") if edge == "low" else ("↑", 3, "bottom")
            ax.annotate(
                text, (place, value), xytext=(0, away), textcoords="offset points", ha="center", va=side, fontsize=17,
                color=colour,
            )  # fmt: skip
