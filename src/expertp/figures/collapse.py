"""Training curves of all sizes: how long they lie on the base's, and by how much they leave it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.analysis.collapse import FAR_SDS, Collapse, collapse, shared_seeds, trace
from expertp.figures import style
from expertp.figures.labels import axis_title, known, seeds_label, size_label, thinned
from expertp.spec import ModelSpec
from expertp.study import StudySpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What the marks of the picture mean.
MARKS = (
    f"grey: ± {FAR_SDS:g} s.d. of the base's seeds; thin lines: where a size leaves it; "
    "dotted: where the base has made half of its way"
)
# Records of metrics.jsonl by seed: those of a model with a rule set's base hyperparameters, runs that have ended only.
RecordsOf = Callable[[ModelSpec, str], Mapping[int, Sequence[Mapping[str, Any]]]]


@dataclass(frozen=True)
class CollapseAxis:
    """The comparison along one axis; None where the base or all other sizes are missing."""

    axis: str
    collapse: Collapse | None
    labels: Mapping[float, str]
    n_seeds: Mapping[float, int]


@dataclass(frozen=True)
class CollapseData:
    """All axes of one rule set."""

    rules: str
    axes: tuple[CollapseAxis, ...]

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return len(self.axes), 1.7

    @property
    def has_curves(self) -> bool:
        """Whether there is an axis to draw."""
        return any(each.collapse for each in self.axes)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per axis, scale and step that is drawn."""
        return [
            {
                "axis": each.axis,
                "rules": self.rules,
                "scale": scale,
                "step": each.collapse.steps[place],
                "loss": known(losses[place]),
                "relative_to_base": known(relative[place]),
                "base_sd": known(each.collapse.base_sd[place]),
                "seeds": each.n_seeds.get(scale),
                "leaves_at": leaves_at(each.collapse).get(scale),
            }
            for each in self.axes
            if each.collapse
            for scale, losses, relative in lines(each.collapse)
            for place in thinned(each.collapse.steps)
        ]


def leaves_at(found: Collapse) -> dict[float, int]:
    """Return the step at which each size first lies off the base by 3 s.d., those that do."""
    return {each.scale: each.leaves_at for each in found.deviations if each.leaves_at is not None}


def lines(found: Collapse) -> list[tuple[float, Sequence[float], Sequence[float]]]:
    """Return scale, loss and relative difference of all sizes, the base's first, smaller ones among the others."""
    base = (1.0, found.base, (0.0,) * len(found.base))
    return sorted(
        [base, *((each.scale, each.mean, each.relative) for each in found.deviations)], key=lambda each: each[0]
    )


def data(study: StudySpec, rules: str, records: RecordsOf) -> CollapseData:
    """Compare the zero-shot runs of a rule set with those of the base, on each axis that it is trained on."""
    names = study.axis_names if rules == study.hps.rules else study.contrasts[rules].axes
    return CollapseData(rules, tuple(_axis(study, rules, axis, records) for axis in names))


def _axis(study: StudySpec, rules: str, axis: str, records: RecordsOf) -> CollapseAxis:
    found = {scale: trace(scale, records(model, rules)) for scale, model in study.models(axis).items()}
    base = found[1.0]
    n_seeds = {scale: len(shared_seeds(base, each)) for scale, each in found.items()}
    there = [each for scale, each in found.items() if scale != 1.0 and n_seeds[scale]]
    return CollapseAxis(
        axis=axis,
        collapse=collapse(base, there) if there else None,
        labels={scale: size_label(study, axis, scale) for scale in found},
        n_seeds=n_seeds,
    )


def draw(figure: Figure, curves: CollapseData) -> None:
    """Draw the curves above and their difference to the base's below, a column per axis."""
    grid = figure.subplots(2, len(curves.axes), squeeze=False, sharey="row", sharex="col", height_ratios=(1.4, 1))
    reach = 0.0
    for column, each in enumerate(curves.axes):
        upper, lower = grid[0][column], grid[1][column]
        upper.set_title(axis_title(each.axis), pad=20 if each.collapse else 6)
        if each.collapse is None:
            style.nothing_here(upper, "not both of base and a size")
            style.nothing_here(lower, "")
            continue
        _draw_axis(upper, lower, each, each.collapse)
        for _, _, relative in lines(each.collapse):
            values = np.abs(np.asarray(relative)[np.asarray(each.collapse.steps) > each.collapse.steps[-1] / 50])
            reach = max(reach, float(np.nanmax(values, initial=0.0, where=~np.isnan(values))))
    seeds = seeds_label(n for each in curves.axes for n in each.n_seeds.values() if n)
    grid[0][0].set_ylabel(f"training loss (nats),\nmean of {seeds}")
    grid[1][0].set_ylabel("difference to the base")
    reach = min(0.5, max(0.01, 1.15 * reach))
    for lower in grid[1]:
        lower.set_ylim(-reach, reach)
    style.percent_ticks(grid[1][0])


def _draw_axis(upper: Axes, lower: Axes, each: CollapseAxis, found: Collapse) -> None:
    steps = np.asarray(found.steps, float)
    shown = thinned(found.steps)
    for ax in (upper, lower):
        style.faint_grid(ax)
        style.step_ticks(ax)
        ax.axvline(found.half_drop_step, color=style.INK, alpha=0.5, linewidth=1, linestyle=(0, (1, 1.5)))
    base, noise = np.asarray(found.base), np.asarray(found.base_sd)
    with np.errstate(divide="ignore", invalid="ignore"):
        far = (FAR_SDS * noise / base)[shown]
        lower.fill_between(steps[shown], -far, far, color=style.INK, alpha=0.1, linewidth=0)
    curves = lines(found)
    for place, (scale, losses, relative) in enumerate(curves):
        colour = style.size_colour(place, len(curves))
        upper.plot(steps[shown], np.asarray(losses)[shown], color=colour, linewidth=1.3, label=each.labels[scale])
        lower.plot(steps[shown], np.asarray(relative)[shown], color=colour, linewidth=1.3)
        if scale in leaves_at(found):
            lower.axvline(leaves_at(found)[scale], color=colour, linewidth=0.8, alpha=0.7)
    style.legend_above(upper)
    lower.set_xlabel("step")
