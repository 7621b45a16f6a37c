"""What zero-shot costs: loss with the base's optimum minus the best loss at that size, beside noise and gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.analysis.curves import StudyTable
from expertp.analysis.transfer import AxisVerdict
from expertp.figures import style
from expertp.figures.drift import LOOKS
from expertp.figures.labels import HP_SHORT, axis_title, cell, known
from expertp.study import HP

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ExcessPoint:
    """The excess of one scale under one hyperparameter, nats, with its interval."""

    axis: str
    hp: HP
    scale: float
    excess: float
    low: float
    high: float
    limit: float
    seed_sd: float
    n_seeds: int


@dataclass(frozen=True)
class Gain:
    """How much lower than the base's a size's zero-shot loss is, nats."""

    axis: str
    scale: float
    gain: float


@dataclass(frozen=True)
class ExcessData:
    """All axes."""

    axes: tuple[str, ...]
    points: tuple[ExcessPoint, ...]
    gains: tuple[Gain, ...]

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return len(self.axes), 1.6

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per axis, hyperparameter and scale."""
        gains = {(each.axis, each.scale): each.gain for each in self.gains}
        return [
            {
                "axis": each.axis,
                "hp": each.hp,
                "scale": each.scale,
                "excess": each.excess,
                "low": known(each.low),
                "high": known(each.high),
                "limit": known(each.limit),
                "seed_sd": known(each.seed_sd),
                "gain_from_scale": gains.get((each.axis, each.scale)),
                "seeds": each.n_seeds,
            }
            for each in self.points
        ]


def data(table: StudyTable, verdicts: Sequence[AxisVerdict]) -> ExcessData:
    """Take the excess from the verdicts, and the gain from the zero-shot runs."""
    study = table.study
    points = [
        ExcessPoint(each.axis, each.hp, scale, excess, low, high, each.excess_limit, each.noise.seed_sd, each.n_seeds)
        for each in verdicts
        for scale, (excess, low, high) in sorted(each.excess_at.items())
        if not math.isnan(excess)
    ]
    gains = []
    for axis in study.axis_names:
        losses = {scale: cell(table.zero_shot(axis, scale, study.hps.rules)).median for scale in study.models(axis)}
        base = losses.get(1.0)
        gains += [
            Gain(axis, scale, base - loss)
            for scale, loss in losses.items()
            if scale != 1.0 and base is not None and loss is not None
        ]
    return ExcessData(study.axis_names, tuple(points), tuple(gains))


def draw(figure: Figure, excess: ExcessData) -> None:
    """Draw the excess against noise above, and against the gain from scale below."""
    grid = figure.subplots(2, len(excess.axes), squeeze=False)
    for column, axis in enumerate(excess.axes):
        upper, lower = grid[0][column], grid[1][column]
        upper.set_title(axis_title(axis))
        points = [each for each in excess.points if each.axis == axis]
        if not points:
            style.nothing_here(upper, "no excess yet")
            style.nothing_here(lower, "")
            continue
        scales = sorted({each.scale for each in points})
        # Each axis has its own range: one that fails would flatten all others.
        _draw_against_noise(upper, points, scales)
        _draw_against_gain(lower, points, [each for each in excess.gains if each.axis == axis], scales)
        upper.tick_params(labelbottom=False)
        lower.set_xlabel("scale (times the base)")
    grid[0][0].set_ylabel("zero-shot excess (nats)")
    grid[1][0].set_ylabel("gain and excess (nats)")
    style.figure_legend(figure, style.handles_of(grid.flat))


def _draw_against_noise(ax: Axes, points: Sequence[ExcessPoint], scales: Sequence[float]) -> None:
    style.faint_grid(ax)
    ax.axhline(0, color=style.INK, linewidth=0.8)
    limit = max((each.limit for each in points if math.isfinite(each.limit)), default=None)
    noise = max((each.seed_sd for each in points if math.isfinite(each.seed_sd)), default=None)
    # What has no upper end ends here, and says so.
    top = 1.25 * max(
        [value for each in points for value in (each.excess, each.high, each.limit) if math.isfinite(value)] or [1]
    )
    if limit is not None:
        ax.axhline(
            limit, color=style.INK, alpha=0.6, linewidth=1, linestyle=(0, (1, 1.5)), label="allowed by the study"
        )
    if noise is not None:
        ax.axhspan(-noise, noise, color=style.INK, alpha=0.09, linewidth=0, label="± 1 s.d. over seeds")
    for hp, (colour, marker, beside) in LOOKS.items():
        ours = [each for each in points if each.hp == hp]
        if ours:
            x = [each.scale * beside for each in ours]
            y, low, high = (np.minimum(top, [getattr(each, end) for each in ours]) for end in ("excess", "low", "high"))
            ax.errorbar(
                x, y, np.maximum(0, [y - low, high - y]), color=colour,
                marker=marker, linestyle="none", capsize=2, label=f"{HP_SHORT[hp]}, 95% interval",
            )  # fmt: skip
            for place, each in zip(x, ours, strict=True):
                if math.isinf(each.high):
                    word = "∞" if math.isfinite(each.excess) else "diverged"
                    ax.annotate(word, (place, top), (0, 2), textcoords="offset points", ha="center", color=colour)
    style.scale_ticks(ax, scales)


def _draw_against_gain(ax: Axes, points: Sequence[ExcessPoint], gains: Sequence[Gain], scales: Sequence[float]) -> None:
    style.faint_grid(ax)
    ax.axhline(0, color=style.INK, linewidth=0.8)
    ax.bar(
        [each.scale for each in gains], [each.gain for each in gains], width=[0.34 * each.scale for each in gains],
        color=style.PASS, alpha=0.35, linewidth=0, label="gain of zero-shot over the base",
    )  # fmt: skip
    for hp, (colour, marker, beside) in LOOKS.items():
        ours = [each for each in points if each.hp == hp]
        (line,) = ax.plot(
            [each.scale * beside for each in ours], [each.excess for each in ours], color=colour, marker=marker,
            linestyle="none", clip_on=False, zorder=3,
        )  # fmt: skip
        line.set_in_layout(False)  # a marker on the axis may stand over it, and needs no room
    style.scale_ticks(ax, scales)
