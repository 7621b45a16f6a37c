"""Many small experts or a few large ones: loss against active experts at a fixed number of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from expertp.analysis.paired import Change, paired
from expertp.figures import style
from expertp.figures.cells import draw_cells, strip_of_diverged
from expertp.figures.labels import LOSS, Cell, cell, seeds_label, span
from expertp.spec import ModelSpec
from expertp.wording import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Point:
    """One model; `by_seed` are the losses that `losses` sums up, inf where a run has diverged and nan where none is."""

    label: str
    n_exp: int
    n_act: int
    alpha_ffn: float
    parameters: int
    active_parameters: int
    losses: Cell
    by_seed: tuple[float, ...]

    @property
    def experts(self) -> str:
        """How many experts there are and how large each is: "16×1/4"."""
        return f"{self.n_exp}×{Fraction(self.alpha_ffn).limit_denominator(10_000)}"


@dataclass(frozen=True)
class GranularityData:
    """A panel per group, by its name; models of a group are ordered by their active experts."""

    groups: Mapping[str, tuple[Point, ...]]

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return len(self.groups), 1.3

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per model."""
        return [
            {
                "group": name,
                "model": each.label,
                "n_act": each.n_act,
                "alpha_ffn": each.alpha_ffn,
                "parameters": each.parameters,
                "active_parameters": each.active_parameters,
                **each.losses.numbers,
            }
            for name, points in self.groups.items()
            for each in points
        ]


def data(groups: Mapping[str, Sequence[tuple[ModelSpec, Sequence[float]]]]) -> GranularityData:
    """Sum up the losses of each model, which are in the order of its group's seeds."""
    return GranularityData(
        {
            name: tuple(_point(*each) for each in sorted(models, key=lambda each: each[0].n_act))
            for name, models in groups.items()
        }
    )


def _point(model: ModelSpec, losses: Sequence[float]) -> Point:
    counts = model.counts()
    return Point(
        label=f"E{model.n_exp}A{model.n_act}" if model.ffn == "moe" else "dense",
        n_exp=model.n_exp,
        n_act=model.n_act,
        alpha_ffn=model.alpha_ffn,
        parameters=counts.total,
        active_parameters=counts.active,
        losses=cell(losses),
        by_seed=tuple(losses),
    )


def is_monotone(points: Sequence[Point]) -> bool:
    """Return whether the median falls from each model to the next with more experts; one that has none does not."""
    medians = [each.losses.median for each in sorted(points, key=lambda each: each.n_act)]
    return len(medians) > 1 and all(
        fewer is not None and more is not None and more < fewer for fewer, more in pairwise(medians)
    )


def gain(points: Sequence[Point]) -> Change:
    """Return loss with the fewest experts minus loss with the most, seed by seed."""
    fewest, most = min(points, key=lambda each: each.n_act), max(points, key=lambda each: each.n_act)
    return paired(fewest.by_seed, most.by_seed)


def draw(figure: Figure, granularity: GranularityData) -> None:
    """Draw a panel per group, each around its own losses and all on one scale."""
    grid = figure.subplots(1, max(1, len(granularity.groups)), squeeze=False)[0]
    ranges = [_loss_range(points) for points in granularity.groups.values()]
    half = 0.58 * max([high - low for low, high in ranges] + [0.01])
    diverged = any(each.losses.diverged for points in granularity.groups.values() for each in points)
    for ax, (name, points), (low, high) in zip(grid, granularity.groups.items(), ranges, strict=True):
        ax.set_title(name)
        if not points:
            style.nothing_here(ax, "no model yet")
            continue
        _draw_group(ax, points)
        ax.set_ylim((low + high) / 2 - half, (low + high) / 2 + half)
        if diverged:
            strip_of_diverged([ax], 1, is_named=ax is grid[0])
    grid[0].set_ylabel(LOSS)


def _loss_range(points: Sequence[Point]) -> tuple[float, float]:
    ends = [end for each in points for end in (each.losses.low, each.losses.high) if end is not None]
    return min(ends, default=0.0), max(ends, default=0.0)


def _draw_group(ax: Axes, points: Sequence[Point]) -> None:
    from matplotlib.ticker import NullLocator

    style.faint_grid(ax)
    ax.set_xscale("log", base=2)
    x = [each.n_act for each in points]
    draw_cells(ax, x, [each.losses for each in points], color=style.OURS, marker="o")
    ax.set_xticks(x)
    ax.set_xticklabels([f"{each.label}\n{each.experts}" for each in points], fontsize=9 if len(points) < 5 else 8)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(min(x) / 1.4, max(x) * 1.4)
    total, active = (
        span(count(value) for value in sorted(getattr(each, field) for each in points))
        for field in ("parameters", "active_parameters")
    )
    ax.set_xlabel(
        f"experts × size of each (alpha_ffn)\n{total} parameters,\n{active} active; "
        f"{seeds_label(each.losses.runs for each in points)}"
    )
