"""Fig. 12, appendix D.3: final zero-shot loss over the number of parameters, counted in four ways, with one line each.

The step from one to two active experts lowers the loss at the same number of parameters. Where there are models of both
kinds, a fit with an offset for models with one active expert stands beside the plain one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.analysis.paired import paired
from expertp.analysis.scaling import MIN_SIZES
from expertp.figures import style
from expertp.figures.labels import LOSS, as_drawn, axis_title, seeds_label
from expertp.figures.save import render
from expertp.paper import zero_shot
from expertp.paper.finding import Criteria, Finding, Outcome, Tables, is_positive
from expertp.spec import Model
from expertp.util.fits import Line, fit_line, r2_with_offset

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = "The final loss falls linearly with the logarithm of the number of parameters."

# Smallest R² that counts as a straight line; the paper reports 0.84 to 0.93.
STRAIGHT = 0.8
COUNTED = {
    "total": "all",
    "non_embedding_total": "without embeddings",
    "active": "active",
    "non_embedding_active": "active, without embeddings",
}
# The way of counting with the largest R² in the paper.
BEST = "non_embedding_active"
CRITERIA = Criteria(
    paper=f"For every way of counting, a straight line in log(parameters) has an R² of at least {STRAIGHT}.",
    ours=f"For the parameters that are {COUNTED[BEST]}, which fit best in the paper, the line falls for every seed, "
    f"and the R² of fits to single seeds is significantly above {STRAIGHT}.",
)


def decide(tables: Tables) -> Outcome:
    """Fit all sizes of the studies of which every seed finishes."""
    losses = {
        (axis, size.model): table.zero_shot(axis, size, table.own)
        for table in tables.values()
        for axis in table.axes
        for size in table.sizes(axis)
        if axis == table.axes[0] or not size.is_base
    }
    shown = ScalingFitData({model: values for model, values in losses.items() if all(map(math.isfinite, values))})
    n, left_out = len(shown.losses), len(losses) - len(shown.losses)
    if n < MIN_SIZES:
        return Outcome([None], [None], "no fit", f"All seeds finish for only {n} models.", ())
    by_seed = shown.fits_by_seed(BEST)
    above = paired([fit.r2 for fit in by_seed], [STRAIGHT] * len(by_seed))
    models = f"{n} models" + (f", without {left_out} of which a seed diverges" if left_out else "")
    listed = ", ".join(f"{fit.r2:.3f}" for fit in by_seed)
    return Outcome(
        parts=[is_positive(above) if all(fit.slope < 0 for fit in by_seed) else False],
        paper_parts=[fit.r2 >= STRAIGHT for fit in shown.fits.values()],
        number="R² by way of counting parameters: "
        + "; ".join(f"{label} {shown.fits[counted].r2:.3f}" for counted, label in COUNTED.items()),
        why=f"{models}. The paper reports 0.900, 0.914, 0.844 and 0.933 in this order. {COUNTED[BEST].capitalize()}, "
        f"by seed: {listed}. {_describe_offset(shown)}",
        drawings=(render("scaling-fit", draw, shown),),
    )


def _describe_offset(shown: ScalingFitData) -> str:
    """Return the R² of all fits with an offset for models with one active expert, in a sentence."""
    if not shown.has_offset:
        return "No offset is fitted, because all models have two or more active experts, or all have one."
    r2s = ", ".join(f"{label} {shown.r2_with_offset(counted):.3f}" for counted, label in COUNTED.items())
    return f"With an offset for models with one active expert: {r2s}."


@dataclass(frozen=True)
class ScalingFitData:
    """Losses by seed of every model, with its axis."""

    losses: Mapping[tuple[str, Model], Sequence[float]]
    shape: tuple[float, float] = (len(COUNTED), 1.15)  # columns and rows of panels

    def points(self, counted: str) -> list[tuple[str, int, float]]:
        """Return axis, number of parameters and mean loss of every model, for one way of counting."""
        return [
            (axis, getattr(model.counts(), counted), float(np.mean(losses)))
            for (axis, model), losses in self.losses.items()
        ]

    @cached_property
    def fits(self) -> dict[str, Line]:
        """Lines of loss over log10 of the number of parameters, by way of counting."""
        points = {counted: list(zip(*self.points(counted), strict=True)) for counted in COUNTED}
        return {counted: fit_line(np.log10(n), losses) for counted, (_, n, losses) in points.items()}

    def fits_by_seed(self, counted: str) -> list[Line]:
        """Return the line of every seed, for one way of counting."""
        x = np.log10([n for _, n, _ in self.points(counted)])
        return [fit_line(x, losses) for losses in zip(*self.losses.values(), strict=True)]

    @property
    def is_single(self) -> list[bool]:
        """Whether each model has one active expert."""
        return [model.n_act == 1 for _, model in self.losses]

    @property
    def has_offset(self) -> bool:
        """Whether some models have one active expert, and others more."""
        return len(set(self.is_single)) == 2

    def r2_with_offset(self, counted: str) -> float:
        """Return the R² of a line with an offset for models with one active expert."""
        _, n, losses = zip(*self.points(counted), strict=True)
        return r2_with_offset(np.log10(n), losses, self.is_single)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per model and way of counting."""
        n_seeds = [len(losses) for losses in self.losses.values()]
        return [
            {
                "axis": axis,
                "counted": counted,
                "parameters": parameters,
                "loss": loss,
                "seeds": n,
                "slope": fit.slope,
                "r2": fit.r2,
            }
            for counted, fit in self.fits.items()
            for n, (axis, parameters, loss) in zip(n_seeds, self.points(counted), strict=True)
        ]


def draw(figure: Figure, fits: ScalingFitData) -> None:
    """Draw a panel per way of counting."""
    grid = figure.subplots(1, len(COUNTED), sharey=True)
    axes = list(dict.fromkeys(axis for axis, _ in fits.losses))
    for ax, (counted, title) in zip(grid, COUNTED.items(), strict=True):
        style.faint_grid(ax)
        fit, points = fits.fits[counted], fits.points(counted)
        ax.set_title(f"{title}\nR² {fit.r2:.3f}")
        for place, axis in enumerate(axes):
            ax.plot(
                [n for name, n, _ in points if name == axis], [loss for name, _, loss in points if name == axis],
                linestyle="none", marker=style.marker(place), color=style.size_colour(place, len(axes)),
                label=as_drawn(axis_title(axis)),
            )  # fmt: skip
        counts = [n for _, n, _ in points]
        ends = np.array([min(counts), max(counts)])
        ax.plot(ends, [fit(end) for end in np.log10(ends)], color=style.INK, alpha=0.6, linewidth=1.0)
        style.parameter_ticks(ax, counts)
        ax.set_xlabel("parameters")
    grid[0].set_ylabel(f"{LOSS},\nmean of {seeds_label(len(losses) for losses in fits.losses.values())}")
    style.figure_legend(figure, style.handles_of(grid))


FINDING = Finding(
    "scaling-fit", "Fig. 12, appendix D.3", CLAIM, CRITERIA, (zero_shot.QUARTER, zero_shot.QUARTER_DEPTH), decide
)
