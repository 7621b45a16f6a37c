"""The study's own arm beside another arm, zero-shot and re-tuned.

Zero-shot: the hyperparameters of each arm at the base, carried over. Re-tuned: the best point of the other arm's sweeps
at that size. A gap is the other arm's loss minus ours, paired by seed: positive where ours is lower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from expertp.analysis.curves import curve
from expertp.figures import style
from expertp.figures.labels import LOSS, LossSummary, as_drawn, summarize
from expertp.figures.losses import draw_losses, error_bars, strip_of_diverged
from expertp.figures.save import Row, Value
from expertp.figures.style import Axes, Figure
from expertp.study.cells import Arm, Size
from expertp.study.spec import HPS
from expertp.study.table import StudyTable


class Gap(NamedTuple):
    """Loss of the other arm minus ours, paired by seed: mean, minimum, maximum and number of seeds."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Comparison:
    """Losses of both arms at one size; None where the study has none."""

    axis: str
    size: Size
    ours: LossSummary
    zero_shot: LossSummary
    zero_shot_gap: Gap | None
    retuned: LossSummary | None
    retuned_at: str
    retuned_gap: Gap | None

    @property
    def label(self) -> str:
        """The size in the unit of the axis."""
        return self.size.label_on(self.axis)


@dataclass(frozen=True)
class ArmsData:
    """The study's own arm and another one, at all sizes of the other arm's axes."""

    axes: tuple[str, ...]
    own: Arm
    other: Arm
    sizes: tuple[Comparison, ...]

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows of panels."""
        return len(self.axes), 1.9

    @property
    def has_losses(self) -> bool:
        """Whether both have at least one loss."""
        return any(each.ours.n for each in self.sizes) and any(each.zero_shot.n for each in self.sizes)

    def rows(self) -> list[Row]:
        """Return one row per size."""
        rows: list[Row] = []
        ours, theirs = self.own.name, self.other.name
        for each in self.sizes:
            row: dict[str, Value] = {"axis": each.axis, "size": each.label, "scale": each.size.scale}
            summaries = {ours: each.ours, f"{theirs} zero-shot": each.zero_shot, f"{theirs} re-tuned": each.retuned}
            for name, losses in summaries.items():
                row |= {f"{name} {part}": getattr(losses, part, None) for part in ("median", "n", "diverged")}
            row[f"{theirs} re-tuned at"] = each.retuned_at
            for name, gap in (("zero-shot gap", each.zero_shot_gap), ("re-tuned gap", each.retuned_gap)):
                row |= {f"{name} {part}": getattr(gap, part, None) for part in Gap._fields}
            rows.append(row)
        return rows


def data(table: StudyTable, arm: Arm) -> ArmsData:
    """Compare every size of an arm's axes with the study's own arm."""
    sizes = []
    for axis in table.axes_of(arm):
        for size in table.sizes(axis):
            ours, theirs = (table.zero_shot(axis, size, each) for each in (table.own, arm))
            best, where = _retuned(table, axis, size, arm)
            zero_shot = (summarize(ours), summarize(theirs), _gap(theirs, ours))
            retuned = (summarize(best) if best else None, where, _gap(best, ours) if best else None)
            sizes.append(Comparison(axis, size, *zero_shot, *retuned))
    return ArmsData(table.axes_of(arm), table.own, arm, tuple(sizes))


class HeadlineData(ArmsData):
    """The same, for a figure of losses only."""

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows of panels."""
        return len(self.axes), 1.0


def headline_data(table: StudyTable, arm: Arm) -> HeadlineData:
    """Compare every size of an arm's axes with the study's own arm, for a figure of losses only."""
    found = data(table, arm)
    return HeadlineData(found.axes, found.own, found.other, found.sizes)


def _retuned(table: StudyTable, axis: str, size: Size, arm: Arm) -> tuple[tuple[float, ...], str]:
    """Return the losses of an arm's best grid point at a size, one per zero-shot seed, and where it lies.

    The best is chosen by the mean loss, as gaps are means, over the seeds that all candidates share. The zero-shot
    value is a candidate too, so re-tuned cannot be worse than zero-shot.
    """
    swept = [found for hp in HPS if (found := curve(table, axis, size, arm, hp)) is not None]
    if not swept:
        return (), ""
    seeds = [row.cell.seed for row in table.where(axis=axis, size=size, arm=arm, hp=None)]
    candidates = [
        (
            tuple(dict(zip(each.seeds, losses, strict=True)).get(seed, math.nan) for seed in seeds),
            f"{each.hp} {value:g}",
        )
        for each in swept
        for value, losses, median in zip(each.log2_values, each.losses, each.medians, strict=True)
        if math.isfinite(median)
    ]
    zero_shot = table.zero_shot(axis, size, arm)
    if summarize(zero_shot).median is not None:
        candidates.append((zero_shot, "the zero-shot values"))
    shared = [place for place in range(len(seeds)) if not any(math.isnan(losses[place]) for losses, _ in candidates)]

    def mean(candidate: tuple[tuple[float, ...], str]) -> float:
        losses = candidate[0]
        return float(np.nanmean([losses[place] for place in shared] or losses))

    return min(candidates, key=mean, default=((), "no run yet"))


def _gap(theirs: Sequence[float], ours: Sequence[float]) -> Gap | None:
    """Return the gap over seeds; None where a run has diverged, since the other seeds would be biased."""
    if math.inf in (*theirs, *ours):
        return None
    pairs = [b - a for a, b in zip(ours, theirs, strict=True) if math.isfinite(a) and math.isfinite(b)]
    return Gap(float(np.mean(pairs)), min(pairs), max(pairs), len(pairs)) if pairs else None


def draw(figure: Figure, arms: ArmsData) -> None:
    """Draw losses in the top row and gaps in the bottom row, one column per axis."""
    columns = style.columns(figure, arms.axes, (1.5, 1), sharey="row")
    for axis, (upper, lower) in columns:
        sizes = [each for each in arms.sizes if each.axis == axis]
        _draw_losses(upper, arms, sizes)
        _draw_gaps(lower, arms, sizes)
        upper.tick_params(labelbottom=False)
    upper, lower = columns[0][1]
    upper.set_ylabel(LOSS)
    lower.set_ylabel("gap (nats)")
    lower.annotate(
        f"↑ {as_drawn(arms.own.name)} has the lower loss", (0, 1), xycoords="axes fraction", xytext=(3, -2), fontsize=8,
        textcoords="offset points", va="top", alpha=0.75,
    )  # fmt: skip
    summaries = [losses for each in arms.sizes for losses in (each.ours, each.zero_shot, each.retuned) if losses]
    if any(each.diverged for each in summaries):
        strip_of_diverged([panels[0] for _, panels in columns], levels=3)
    style.figure_legend(figure)


def draw_headline(figure: Figure, arms: HeadlineData) -> None:
    """Draw losses, one column per axis."""
    columns = style.columns(figure, arms.axes, sharey="row")
    for axis, (ax,) in columns:
        _draw_losses(ax, arms, [each for each in arms.sizes if each.axis == axis])
        ax.set_xlabel("scale (times the base)")
    columns[0][1][0].set_ylabel(LOSS)
    if any(losses.diverged for each in arms.sizes for losses in (each.ours, each.zero_shot)):
        strip_of_diverged([panels[0] for _, panels in columns], levels=3)
    style.figure_legend(figure)


def _series(arms: ArmsData) -> tuple[tuple[str, str, dict[str, str], float], ...]:
    """Return field, label, look and horizontal offset of gaps of each series."""
    own, other = as_drawn(arms.own.name), as_drawn(arms.other.name)
    looks = (
        ("ours", f"{own}, zero-shot", style.OURS, "o", "-", 1.0),
        ("zero_shot", f"{other}, zero-shot", style.OTHER, "s", "--", 0.97),
        ("retuned", f"{other}, re-tuned at each size", style.RETUNED, "D", ":", 1.03),
    )
    return tuple(
        (field, label, {"color": colour, "marker": marker, "linestyle": line}, beside)
        for field, label, colour, marker, line, beside in looks
    )


def _draw_losses(ax: Axes, arms: ArmsData, sizes: Sequence[Comparison]) -> None:
    style.faint_grid(ax)
    style.scale_ticks(ax, [each.size.scale for each in sizes])
    for level, (field, label, look, _) in enumerate(_series(arms)):
        losses = {each.size.scale: found for each in sizes if (found := getattr(each, field))}
        if losses:
            draw_losses(ax, list(losses), list(losses.values()), level, **look, label=label)


def _draw_gaps(ax: Axes, arms: ArmsData, sizes: Sequence[Comparison]) -> None:
    style.faint_grid(ax)
    style.scale_ticks(ax, [each.size.scale for each in sizes])
    ax.axhline(0, color=style.INK, linewidth=0.9)
    for field, _, look, beside in _series(arms):
        gaps = {each.size.scale * beside: gap for each in sizes if (gap := getattr(each, f"{field}_gap", None))}
        if gaps:
            mean, low, high, _ = zip(*gaps.values(), strict=True)
            error_bars(ax, list(gaps), mean, low, high, **look)
    ax.set_xlabel("scale (times the base)")
