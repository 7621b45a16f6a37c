"""The transferred model beside another rule set, in both honest ways.

Zero-shot: the contrast with its own base optimum copied. Re-tuned: the contrast with lr and init swept at that very
size, the best of its grids taken. A gap is the contrast's loss minus ours, seed by seed: positive where ours is lower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.analysis.curves import StudyTable
from expertp.figures import style
from expertp.figures.cells import draw_cells, strip_of_diverged
from expertp.figures.labels import LOSS, Cell, axis_title, cell, size_label
from expertp.study import HPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Gap:
    """Loss of the contrast minus ours over the seeds that both have: mean, least, most, and how many."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Comparison:
    """One size. What the study does not have is None."""

    axis: str
    label: str
    scale: float
    ours: Cell
    zero_shot: Cell
    zero_shot_gap: Gap | None
    retuned: Cell | None
    retuned_at: str
    retuned_gap: Gap | None

    @property
    def has_diverged(self) -> bool:
        """Whether a run of it has."""
        return any(each.diverged for each in (self.ours, self.zero_shot, self.retuned) if each)


@dataclass(frozen=True)
class ContrastData:
    """Ours and a contrast at all sizes of the contrast's axes."""

    ours: str
    rules: str
    sizes: tuple[Comparison, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes, in order."""
        return tuple(dict.fromkeys(each.axis for each in self.sizes))

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return len(self.axes), 1.9

    @property
    def has_losses(self) -> bool:
        """Whether both have at least one loss."""
        return any(each.ours.n for each in self.sizes) and any(each.zero_shot.n for each in self.sizes)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per size."""
        rows = []
        for each in self.sizes:
            row: dict[str, Any] = {"axis": each.axis, "size": each.label, "scale": each.scale}
            for name, losses in ((self.ours, each.ours), (f"{self.rules} zero-shot", each.zero_shot)):
                row |= _columns(name, losses)
            row |= _columns(f"{self.rules} re-tuned", each.retuned)
            row[f"{self.rules} re-tuned at"] = each.retuned_at
            for name, gap in (("zero-shot gap", each.zero_shot_gap), ("re-tuned gap", each.retuned_gap)):
                for part in ("mean", "low", "high", "n"):
                    row[f"{name} {part}"] = getattr(gap, part) if gap else None
            rows.append(row)
        return rows


def _columns(name: str, losses: Cell | None) -> dict[str, Any]:
    return {f"{name} {part}": getattr(losses, part) if losses else None for part in ("median", "n", "diverged")}


def data(table: StudyTable, rules: str) -> ContrastData:
    """Compare every size of a contrast's axes."""
    study = table.study
    sizes = []
    for axis in study.contrasts[rules].axes:
        for scale in study.models(axis):
            ours, theirs = (table.zero_shot(axis, scale, each) for each in (study.hps.rules, rules))
            best, where = _retuned(table, axis, scale, rules)
            sizes.append(
                Comparison(
                    axis=axis,
                    label=size_label(study, axis, scale),
                    scale=scale,
                    ours=cell(ours),
                    zero_shot=cell(theirs),
                    zero_shot_gap=_gap(theirs, ours),
                    retuned=cell(best) if best else None,
                    retuned_at=where,
                    retuned_gap=_gap(best, ours) if best else None,
                )
            )
    return ContrastData(study.hps.rules, rules, tuple(sizes))


def _retuned(table: StudyTable, axis: str, scale: float, rules: str) -> tuple[tuple[float, ...], str]:
    """Return the losses of the contrast's best cell at a size, one per seed of the study, and where it lies.

    The best is taken by the mean of all that was swept there, as gaps are, the copied values included: it cannot be
    worse than zero-shot.
    """
    swept = [curve for hp in HPS if (curve := table.curve(axis, scale, rules, hp)) is not None]
    if not swept:
        return (), ""
    cells = [
        (losses[: len(table.study.seeds)], f"{curve.hp} {value:g}")
        for curve in swept
        for value, losses, median in zip(curve.log2_values, curve.losses, curve.medians, strict=True)
        if math.isfinite(median)
    ]
    zero_shot = table.zero_shot(axis, scale, rules)
    if cell(zero_shot).median is not None:
        cells.append((zero_shot, "the copied values"))
    return min(cells, key=lambda each: float(np.nanmean(each[0])), default=((), "no run yet"))


def _gap(theirs: Sequence[float], ours: Sequence[float]) -> Gap | None:
    """Return the gap over seeds; None where a run has diverged, since the lucky ones would flatter."""
    if math.inf in (*theirs, *ours):
        return None
    pairs = [b - a for a, b in zip(ours, theirs, strict=True) if math.isfinite(a) and math.isfinite(b)]
    return Gap(float(np.mean(pairs)), min(pairs), max(pairs), len(pairs)) if pairs else None


def draw(figure: Figure, contrast: ContrastData) -> None:
    """Draw losses above and gaps below, a column per axis."""
    axes = contrast.axes
    grid = figure.subplots(2, len(axes), squeeze=False, sharey="row", height_ratios=(1.5, 1))
    for column, axis in enumerate(axes):
        sizes = [each for each in contrast.sizes if each.axis == axis]
        upper, lower = grid[0][column], grid[1][column]
        upper.set_title(axis_title(axis))
        _draw_losses(upper, contrast, sizes)
        _draw_gaps(lower, sizes)
        if column == 0:
            upper.set_ylabel(LOSS)
            lower.set_ylabel("gap (nats)")
            lower.annotate(
                f"↑ {contrast.ours} has the lower loss", (0, 1), xycoords="axes fraction", xytext=(3, -2), fontsize=8,
                textcoords="offset points", va="top", alpha=0.75,
            )  # fmt: skip
    if any(each.has_diverged for each in contrast.sizes):
        strip_of_diverged(grid[0], levels=3)
    style.figure_legend(figure, style.handles_of(grid.flat))


def _series(contrast: ContrastData, sizes: Sequence[Comparison]) -> list[tuple[str, str, str, str, list[Cell | None]]]:
    return [
        (f"{contrast.ours}, base values carried over", style.OURS, "o", "-", [each.ours for each in sizes]),
        (f"{contrast.rules}, base values copied", style.CONTRAST, "s", "--", [each.zero_shot for each in sizes]),
        (f"{contrast.rules}, re-tuned at that size", style.RETUNED, "D", ":", [each.retuned for each in sizes]),
    ]


def _draw_losses(ax: Axes, contrast: ContrastData, sizes: Sequence[Comparison]) -> None:
    style.faint_grid(ax)
    scales = [each.scale for each in sizes]
    for level, (label, colour, marker, line, cells) in enumerate(_series(contrast, sizes)):
        shown = [(scale, each) for scale, each in zip(scales, cells, strict=True) if each is not None]
        if shown:
            x, found = zip(*shown, strict=True)
            draw_cells(ax, x, found, level, color=colour, marker=marker, linestyle=line, label=label)
    style.scale_ticks(ax, scales)
    ax.tick_params(labelbottom=False)


def _draw_gaps(ax: Axes, sizes: Sequence[Comparison]) -> None:
    style.faint_grid(ax)
    ax.axhline(0, color=style.INK, linewidth=0.9)
    for colour, marker, line, gaps, shift in (
        (style.CONTRAST, "s", "--", [each.zero_shot_gap for each in sizes], 0.97),
        (style.RETUNED, "D", ":", [each.retuned_gap for each in sizes], 1.03),
    ):
        shown = [(each.scale * shift, gap) for each, gap in zip(sizes, gaps, strict=True) if gap]
        if shown:
            mean = np.array([gap.mean for _, gap in shown])
            reach = np.abs([mean - [gap.low for _, gap in shown], [gap.high for _, gap in shown] - mean])
            ax.errorbar(
                [scale for scale, _ in shown], mean, reach, color=colour, marker=marker, linestyle=line, capsize=2,
                elinewidth=1,
            )  # fmt: skip
    style.scale_ticks(ax, [each.scale for each in sizes])
    ax.set_xlabel("scale (times the base)")
