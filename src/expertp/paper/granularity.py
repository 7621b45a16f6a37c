"""Many small experts or a few large ones: loss over active experts at a fixed number of parameters.

Shared by tradeoff and tradeoff_long. A model with one active expert is shown, but not judged by our criterion: the step
from one to two active experts also changes what the router learns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from expertp.analysis.paired import PairedDifference, paired
from expertp.figures import style
from expertp.figures.labels import LOSS, LossSummary, seeds_label, span, summarize
from expertp.figures.losses import draw_losses, strip_of_diverged
from expertp.figures.save import render
from expertp.paper.finding import Criteria, Outcome, is_positive
from expertp.spec import Model
from expertp.study.table import StudyTable
from expertp.util.text import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


CRITERIA = Criteria(
    paper="The median loss falls with every increase of the number of active experts.",
    ours="Among the models with two or more active experts, the one with most has a significantly lower loss than the "
    "one with fewest.",
)


def compare_granularity(table: StudyTable) -> Outcome:
    """Compare models with the same active parameters, cut into more and more experts: the joint axes of a study."""
    groups: dict[int, list[Point]] = {}
    for axis in table.study.joint:
        size = table.sizes(axis)[-1]
        active = round(size.model.n_act * size.model.alpha_ffn)
        groups.setdefault(active, []).append(Point(size.model, table.zero_shot(axis, size, table.own)))
    shown = data({f"{table.study.train.steps} steps, n_act × alpha_ffn = {each}": groups[each] for each in groups})
    gains, parts, medians = list[str](), list[bool | None](), list[str]()
    for active, points in zip(groups, shown.groups.values(), strict=True):
        at = f" at n_act alpha_ffn {active}" if len(groups) > 1 else ""
        several = [point for point in points if point.model.n_act > 1]
        gains += [f"{_described(group)}{at}" for group in (several, points) if group is several or group != several]
        parts.append(is_positive(gain(several)))
        falls = "falls" if is_monotone(points) else "does not fall"
        medians.append(f"The median loss {falls} with every increase of n_act{at}.")
    return Outcome(
        parts=parts,
        paper_parts=[is_monotone(points) for points in shown.groups.values()],
        number=f"loss with fewer minus loss with more active experts: {', '.join(gains)}",
        why=" ".join(["Positive: more, smaller experts are better at the same number of parameters.", *medians]),
        drawings=(render(table.study.name, draw, shown),),
    )


@dataclass(frozen=True)
class Point:
    """One model, and its losses by seed: inf where a run has diverged, nan where it is missing."""

    model: Model
    by_seed: Sequence[float]

    @property
    def losses(self) -> LossSummary:
        """The losses, summarized over seeds."""
        return summarize(self.by_seed)

    @property
    def label(self) -> str:
        """Number of experts and of active experts: "E16A4"."""
        return f"E{self.model.n_exp}A{self.model.n_act}"

    @property
    def experts(self) -> str:
        """Number and size of the experts: "16×1/4"."""
        return f"{self.model.n_exp}×{Fraction(self.model.alpha_ffn).limit_denominator(10_000)}"


@dataclass(frozen=True)
class GranularityData:
    """Groups of models by name, one panel each; models are ordered by active experts."""

    groups: Mapping[str, Sequence[Point]]

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
                "n_act": each.model.n_act,
                "alpha_ffn": each.model.alpha_ffn,
                "parameters": each.model.counts().total,
                "active_parameters": each.model.counts().active,
                **each.losses.numbers,
            }
            for name, points in self.groups.items()
            for each in points
        ]


def data(groups: Mapping[str, Iterable[Point]]) -> GranularityData:
    """Order the models of each group by their active experts."""
    return GranularityData({name: sorted(points, key=lambda each: each.model.n_act) for name, points in groups.items()})


def is_monotone(points: Sequence[Point]) -> bool:
    """Return whether the median falls from each model to the next with more experts; False where one is unknown."""
    medians = [each.losses.median for each in points]
    return len(medians) > 1 and all(
        fewer is not None and more is not None and more < fewer for fewer, more in pairwise(medians)
    )


def _described(points: Sequence[Point]) -> str:
    """Return the gain from the fewest to the most active experts, with the names of the two models."""
    return f"{points[0].label} minus {points[-1].label} {gain(points)}"


def gain(points: Sequence[Point]) -> PairedDifference:
    """Return the loss with the fewest active experts minus that with the most, seed by seed."""
    return paired(points[0].by_seed, points[-1].by_seed)


def draw(figure: Figure, granularity: GranularityData) -> None:
    """Draw a panel per group, each around its own losses, with the same scale."""
    grid = figure.subplots(1, max(1, len(granularity.groups)), squeeze=False)[0]
    losses = [[each.losses for each in points] for points in granularity.groups.values()]
    ends = [[end for each in group for end in (each.low, each.high) if end is not None] or [0.0] for group in losses]
    half = 0.58 * max([max(each) - min(each) for each in ends] + [0.01])
    has_diverged = any(each.diverged for group in losses for each in group)
    for ax, (name, points), range_ in zip(grid, granularity.groups.items(), ends, strict=True):
        ax.set_title(name)
        if not points:
            style.nothing_here(ax, "no model yet")
            continue
        _draw_group(ax, points)
        centre = (min(range_) + max(range_)) / 2
        ax.set_ylim(centre - half, centre + half)
        if has_diverged:
            strip_of_diverged([ax], 1, is_named=ax is grid[0])
    grid[0].set_ylabel(LOSS)


def _draw_group(ax: Axes, points: Sequence[Point]) -> None:
    from matplotlib.ticker import NullLocator

    style.faint_grid(ax)
    ax.set_xscale("log", base=2)
    x = [each.model.n_act for each in points]
    draw_losses(ax, x, [each.losses for each in points], color=style.OURS, marker="o")
    ax.set_xticks(x, [f"{each.label}\n{each.experts}" for each in points], fontsize=9 if len(points) < 5 else 8)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(min(x) / 1.4, max(x) * 1.4)
    total, active = (
        span(count(value) for value in sorted(getattr(each.model.counts(), counted) for each in points))
        for counted in ("total", "active")
    )
    ax.set_xlabel(
        f"experts × size of each (alpha_ffn)\n{total} parameters,\n{active} active; "
        f"{seeds_label(each.losses.runs for each in points)}"
    )
