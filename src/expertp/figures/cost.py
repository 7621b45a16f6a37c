"""Cost of zero-shot: its loss minus the lowest loss of that size, beside the tolerance and the gain from scale."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from expertp.analysis.verdict import SizeCost, Verdict
from expertp.figures import style
from expertp.figures.drift import LOOKS
from expertp.figures.labels import axes_with_data, interval_label
from expertp.figures.save import FigureData, Value
from expertp.figures.style import Axes, Figure
from expertp.study.cells import axis_names
from expertp.study.spec import HP, StudySpec

# Half width of the mark of a tolerance, as a factor on the scale.
TOLERANCE_WIDTH = 1.14


@dataclass(frozen=True)
class CostData(FigureData):
    """Verdicts of all axes, with the cost of zero-shot at every size."""

    columns = (
        "axis", "hp", "scale", "cost", "low", "high", "tolerance", "gain_from_scale", "one_octave_off", "seeds",
    )  # fmt: skip
    height = 1.6
    axes: tuple[str, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def points(self) -> list[tuple[Verdict, SizeCost]]:
        """All sizes with a known cost."""
        return [(each, found) for each in self.verdicts for found in each.costs if found.cost.is_known]

    def records(self) -> Iterator[Sequence[Value]]:
        """Return one row per axis, hyperparameter and size."""
        for each, found in self.points:
            cost = (found.cost.value, found.cost.low, found.cost.high)
            beside = (found.tolerance, found.gain, found.sensitivity.value)
            yield each.axis, each.hp, found.size.scale, *cost, *beside, each.n_seeds


def data(study: StudySpec, verdicts: Sequence[Verdict]) -> CostData:
    """Take the costs from the verdicts."""
    known = {each.axis for each in verdicts if any(found.cost.is_known for found in each.costs)}
    return CostData(axes_with_data(axis_names(study), known), tuple(verdicts))


def draw(figure: Figure, costs: CostData) -> None:
    """Draw the cost with its tolerance in the top row, and beside the gain from scale in the bottom row."""
    for axis, (upper, lower) in (columns := style.columns(figure, costs.axes, (1, 1))):
        points = [point for point in costs.points if point[0].axis == axis]
        if not points:
            style.nothing_here(upper, "no cost is known", lower)
            continue
        for ax in (upper, lower):
            style.faint_grid(ax)
            ax.axhline(0, color=style.INK, linewidth=0.8)
            style.scale_ticks(ax, [found.size.scale for _, found in points])
        # One range per axis: one axis that fails would flatten all others.
        _draw_costs(upper, points, {hp: interval_label(costs.verdicts, hp) for hp in {of.hp for of, _ in points}})
        gains = {found.size.scale: found.gain for _, found in points if math.isfinite(found.gain)}
        lower.bar(
            list(gains), list(gains.values()), width=[0.34 * scale for scale in gains], color=style.PASS, alpha=0.35,
            linewidth=0, label="gain from scale",
        )  # fmt: skip
        for verdict, found in points:
            colour, marker, beside = LOOKS[verdict.hp]
            for value, fill, label in (
                (found.cost.value, colour, None),
                (found.sensitivity.value, "none", "one octave off the optimum"),
            ):
                (point,) = lower.plot(
                    found.size.scale * beside, value, color=colour, marker=marker, markerfacecolor=fill,
                    linestyle="none", clip_on=False, zorder=3, label=label,
                )  # fmt: skip
                point.set_in_layout(False)  # a marker on the frame may overlap it and needs no extra space
        upper.tick_params(labelbottom=False)
        lower.set_xlabel("scale (times the base)")
    upper, lower = columns[0][1]
    upper.set_ylabel("cost of zero-shot (nats)")
    lower.set_ylabel("gain and cost (nats)")
    style.figure_legend(figure)


def _draw_costs(ax: Axes, points: Sequence[tuple[Verdict, SizeCost]], labels: Mapping[HP, str]) -> None:
    finite = [
        value
        for _, found in points
        for value in (found.cost.value, found.cost.high, found.tolerance)
        if math.isfinite(value)
    ]
    top = 1.25 * max(finite)  # infinite values are drawn here, with a label
    for verdict in dict.fromkeys(verdict for verdict, _ in points):
        colour, marker, beside = LOOKS[verdict.hp]
        ours = {found.size.scale * beside: found for of, found in points if of is verdict}
        value, low, high = (
            np.minimum(top, [getattr(each.cost, end) for each in ours.values()]) for end in ("value", "low", "high")
        )
        ax.errorbar(
            list(ours), value, np.maximum(0, [value - low, high - value]), color=colour, marker=marker,
            linestyle="none", capsize=2, label=labels[verdict.hp],
        )  # fmt: skip
        for place, each in ours.items():
            ends = (place / TOLERANCE_WIDTH, place * TOLERANCE_WIDTH)
            ax.hlines(each.tolerance, *ends, color=colour, linestyle=(0, (1, 1)), linewidth=1.6, label="tolerance")
            if math.isinf(each.cost.high):
                word = "∞" if math.isfinite(each.cost.value) else "diverged"
                ax.annotate(word, (place, top), (0, 2), textcoords="offset points", ha="center", color=colour)
