"""Zero-shot excess loss: loss at the base's optimum minus the best loss of that size, beside noise and gain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from expertp.analysis.transfer import Verdict
from expertp.figures import style
from expertp.figures.drift import LOOKS
from expertp.figures.labels import HP_SHORT, axes_with_data, summarize
from expertp.figures.save import FigureData, Value
from expertp.figures.style import Axes, Figure
from expertp.study.cells import Size
from expertp.study.table import StudyTable
from expertp.util.statistics import Estimate


@dataclass(frozen=True)
class ExcessData(FigureData):
    """Verdicts of all axes, and the gain from scale: the base's loss minus a size's zero-shot loss, nats."""

    columns = ("axis", "hp", "scale", "excess", "low", "high", "limit", "seed_sd", "gain_from_scale", "seeds")
    height = 1.6
    axes: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    gains: Mapping[tuple[str, Size], float]

    @property
    def points(self) -> list[tuple[Verdict, Size, Estimate]]:
        """All sizes with a known excess."""
        excess = [(each, size, found) for each in self.verdicts for size, found in each.excess_at.items()]
        return [point for point in excess if point[2].is_known]

    def records(self) -> Iterator[Sequence[Value]]:
        """Return one row per axis, hyperparameter and size."""
        for each, size, excess in self.points:
            yield (
                each.axis, each.hp, size.scale, excess.value, excess.low, excess.high, each.excess_limit,
                each.noise.seed_sd, self.gains.get((each.axis, size)), each.n_seeds,
            )  # fmt: skip


def data(table: StudyTable, verdicts: Sequence[Verdict]) -> ExcessData:
    """Take the excess from the verdicts, and the gain from the zero-shot runs."""
    gains = {}
    for axis in table.axes:
        losses = {size: summarize(table.zero_shot(axis, size, table.own)).median for size in table.sizes(axis)}
        base = losses[table.base(axis)]
        for size, loss in losses.items():
            if not size.is_base and base is not None and loss is not None:
                gains[axis, size] = base - loss
    known = {each.axis for each in verdicts if any(excess.is_known for excess in each.excess_at.values())}
    return ExcessData(axes_with_data(table.axes, known), tuple(verdicts), gains)


def draw(figure: Figure, excess: ExcessData) -> None:
    """Draw the excess beside noise in the top row, and beside the gain from scale in the bottom row."""
    for axis, (upper, lower) in (columns := style.columns(figure, excess.axes, (1, 1))):
        points = [point for point in excess.points if point[0].axis == axis]
        if not points:
            style.nothing_here(upper, "no excess is known", lower)
            continue
        for ax in (upper, lower):
            style.faint_grid(ax)
            ax.axhline(0, color=style.INK, linewidth=0.8)
            style.scale_ticks(ax, [size.scale for _, size, _ in points])
        # One range per axis: one axis that fails would flatten all others.
        _draw_against_noise(upper, points)
        gains = {size.scale: gain for (of, size), gain in excess.gains.items() if of == axis}
        lower.bar(
            list(gains), list(gains.values()), width=[0.34 * scale for scale in gains], color=style.PASS, alpha=0.35,
            linewidth=0, label="gain from scale (zero-shot)",
        )  # fmt: skip
        for verdict, size, found in points:
            colour, marker, beside = LOOKS[verdict.hp]
            (point,) = lower.plot(
                size.scale * beside, found.value, color=colour, marker=marker, clip_on=False, zorder=3
            )
            point.set_in_layout(False)  # a marker on the frame may overlap it and needs no extra space
        upper.tick_params(labelbottom=False)
        lower.set_xlabel("scale (times the base)")
    upper, lower = columns[0][1]
    upper.set_ylabel("zero-shot excess (nats)")
    lower.set_ylabel("gain and excess (nats)")
    style.figure_legend(figure)


def _draw_against_noise(ax: Axes, points: Sequence[tuple[Verdict, Size, Estimate]]) -> None:
    verdicts = list(dict.fromkeys(verdict for verdict, _, _ in points))
    limit, noises = max(each.excess_limit for each in verdicts), [each.noise.seed_sd for each in verdicts]
    # Infinite values are drawn here, with a label.
    top = 1.25 * max(value for _, _, each in points for value in (each.value, each.high, limit) if math.isfinite(value))
    ax.axhline(limit, **style.DOTTED, alpha=0.6, linewidth=1, label="allowed by the study")
    if (noise := max(filter(math.isfinite, noises), default=None)) is not None:
        ax.axhspan(-noise, noise, color=style.INK, alpha=0.09, linewidth=0, label="± 1 s.d. over seeds")
    for verdict in verdicts:
        colour, marker, beside = LOOKS[verdict.hp]
        ours = {size.scale * beside: excess for of, size, excess in points if of is verdict}
        value, low, high = (
            np.minimum(top, [getattr(each, end) for each in ours.values()]) for end in ("value", "low", "high")
        )
        ax.errorbar(
            list(ours), value, np.maximum(0, [value - low, high - value]), color=colour, marker=marker,
            linestyle="none", capsize=2, label=f"{HP_SHORT[verdict.hp]}, 95% interval",
        )  # fmt: skip
        for place, each in ours.items():
            if math.isinf(each.high):
                word = "∞" if math.isfinite(each.value) else "diverged"
                ax.annotate(word, (place, top), (0, 2), textcoords="offset points", ha="center", color=colour)
