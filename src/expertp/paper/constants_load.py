"""Fig. 9, appendix D.1: balance of expert loads over training, by learning rate and set of constants."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.analysis.balance import LoadBalance, late_deviations, load_balance
from expertp.analysis.curves import curve
from expertp.analysis.paired import paired
from expertp.analysis.seed_curves import Records
from expertp.figures import style
from expertp.figures.labels import seeds_label, thinned
from expertp.figures.save import render
from expertp.paper.constants import ONES
from expertp.paper.constants_loss import STUDY, constants_labels
from expertp.paper.finding import Criteria, Finding, Outcome, Tables, is_positive
from expertp.paper.imbalance import BALANCED
from expertp.study.cells import Arm, Size, grid
from expertp.study.table import StudyTable
from expertp.util.text import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM = "Without tuned constants, experts are loaded less evenly."
CRITERIA = Criteria(
    paper="At every learning rate at which no run diverges, the mean of max |Load - kappa| in the last quarter of "
    "training is higher with all ones than with the study's own constants.",
    ours="Each set of constants has the init std that was its best in a pilot. At the best learning rate of each, max "
    "|Load - kappa| in the last quarter of training is significantly higher with all ones than with the study's own "
    "constants.",
)

DIVERGED = "diverges"


def decide(tables: Tables) -> Outcome:
    """Compare late loads between sets of constants, seed by seed."""
    table = tables[STUDY.name]
    axis, base, kappa = table.axes[0], table.base(table.axes[0]), float(table.study.base.kappa)
    rates, arms = grid(table.study, "log2_lr", axis), constants_labels(table)
    own = arms[table.own]
    sets = {
        label: {
            rate: table.records(table.where(axis=axis, size=base, arm=arm, hp="log2_lr", value=rate)) for rate in rates
        }
        for arm, label in arms.items()
    }
    late_RS = {label: np.array([_late(table, records) for records in found.values()]) for label, found in sets.items()}
    # Learning rates at which no run of any set has diverged.
    whole = [place for place in range(len(rates)) if not any(np.isnan(each[place]).any() for each in late_RS.values())]
    means_R = {label: each[whole].mean(1) for label, each in late_RS.items()}
    best = {label: _at_best(table, axis, base, arm) for arm, label in arms.items()}
    gaps = {label: paired(best[ONES].late, each.late) for label, each in best.items() if label != ONES}
    listed = ", ".join(f"{label} {each}" for label, each in best.items())
    differences = ", ".join(f"minus {label} {gap}" for label, gap in gaps.items())
    means = ", ".join(f"{label} {each.mean():.3f}" for label, each in means_R.items()) if whole else "unknown"
    uneven = ", ".join(f"{label} {(each > BALANCED * kappa).sum()}" for label, each in means_R.items())
    return Outcome(
        parts=[is_positive(gaps[own])],
        paper_parts=[bool((means_R[ONES] > means_R[own]).all()) if whole else None],
        number=f"max |Load - kappa| late in training at the best learning rate of each set: {listed}; {ONES} "
        f"{differences}",
        why=f"Mean over the {plural(len(whole), 'learning rate')} at which no run diverges: {means}. Number of these "
        f"at which it exceeds half of kappa: {uneven}.",
        drawings=(render("constants-load", draw, data(sets, 1 - kappa)),),
    )


@dataclass(frozen=True)
class _AtBest:
    """The best learning rate of a set of constants, log2, and late load deviations there by seed; inf: it diverges."""

    rate: float
    late: Sequence[float]

    def __str__(self) -> str:
        return f"{'diverges' if math.inf in self.late else f'{np.mean(self.late):.3f}'} (2^{self.rate:g})"


def _at_best(table: StudyTable, axis: str, base: Size, arm: Arm) -> _AtBest:
    swept = curve(table, axis, base, arm, "log2_lr")
    assert swept is not None, "the study sweeps learning rates"
    rows = table.where(axis=axis, size=base, arm=arm, hp="log2_lr", value=swept.best_value)
    records = table.records(rows) if rows else table.zero_shot_records(axis, base, arm)
    return _AtBest(swept.best_value, [math.inf if math.isnan(each) else each for each in _late(table, records)])


def _late(table: StudyTable, records: Records) -> list[float]:
    """Return the late load deviation of each seed of a study; nan where a run has not reached the last step."""
    late = late_deviations(records, table.study.train.steps)
    return [late.get(seed, math.nan) for seed in table.study.seeds]


@dataclass(frozen=True)
class ConstantsLoadData:
    """Loads by set of constants and increasing log2 of the learning rate, and the largest possible load deviation."""

    sets: Mapping[str, Mapping[float, LoadBalance]]
    most: float

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return len(self.sets), 1.2

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per set, learning rate and drawn step."""
        return [
            {
                "constants": name,
                "log2_lr": log2_lr,
                "step": load.steps[place],
                "max_load_deviation": load.max_deviation[place],
                "running_mean": mean[place],
                "seeds": load.n_seeds,
            }
            for name, loads in self.sets.items()
            for log2_lr, load in loads.items()
            for mean in [_running_mean(load)]
            for place in thinned(load.steps)
        ]


def data(sets: Mapping[str, Mapping[float, Records]], most: float) -> ConstantsLoadData:
    """Gather loads from training records.

    Args:
        sets: name of a set of constants -> log2 of the learning rate -> seed -> records.
        most: largest possible load deviation, 1 - kappa.
    """
    found = {
        name: {log2_lr: load for log2_lr in sorted(by_rate) if (load := load_balance(by_rate[log2_lr]))}
        for name, by_rate in sets.items()
    }
    return ConstantsLoadData(found, most)


def _running_mean(load: LoadBalance) -> list[float]:
    """Return the deviation without the noise between batches, which would make late curves hide each other.

    The window grows with the step, to 5% of it on each side: a fixed window would flatten the fall at the start, which
    the logarithmic axis stretches.

    >>> _running_mean(LoadBalance(tuple(range(22)), (0.75,) * 20 + (0.0, 0.75), (0.0,) * 22, 1))[18:]
    [0.75, 0.75, 0.5, 0.375]
    """
    sums, n = np.concatenate([[0.0], np.cumsum(load.max_deviation)]), len(load.steps)
    places = np.arange(n)
    first, last = places - places // 20, np.minimum(n, places + places // 20 + 1)
    means: list[float] = ((sums[last] - sums[first]) / (last - first)).tolist()
    return means


def draw(figure: Figure, found: ConstantsLoadData) -> None:
    """Draw a panel per set of constants, over the whole possible range."""
    grid = figure.subplots(1, max(1, len(found.sets)), squeeze=False, sharey=True)[0]
    rates = sorted({rate for loads in found.sets.values() for rate in loads})
    last_step = max((load.steps[-1] for loads in found.sets.values() for load in loads.values()), default=0)
    for ax, (name, loads) in zip(grid, found.sets.items(), strict=True):
        if not loads:
            ax.set_title(name)
            style.nothing_here(ax, "no run yet")
            continue
        ax.set_title(f"{name} ({seeds_label(load.n_seeds for load in loads.values())})")
        style.faint_grid(ax)
        style.step_ticks(ax)
        for rate, load in loads.items():
            _draw_load(ax, load, rates.index(rate), len(rates), _label(rate), has_diverged=load.steps[-1] < last_step)
        ax.set_xlabel("step")
    grid[0].set_ylim(0, found.most)
    grid[0].set_ylabel("max |Load − κ|,\nrunning mean")
    handles = style.handles_of(grid)
    # In the order of learning rates; a panel may lack one.
    style.figure_legend(figure, {each: handles[each] for each in (*map(_label, rates), DIVERGED) if each in handles})


def _label(log2_lr: float) -> str:
    return f"log₂ lr {log2_lr:g}".replace("-", "\N{MINUS SIGN}")


def _draw_load(ax: Axes, load: LoadBalance, place: int, of: int, label: str, has_diverged: bool) -> None:
    colour, shown = style.size_colour(place, of), thinned(load.steps)
    steps, deviation = np.asarray(load.steps, float), np.asarray(_running_mean(load))
    # With many rates, two neighbours share a colour; dashes distinguish them.
    look = "--" if place % 2 else "-"
    ax.plot(steps[shown], deviation[shown], color=colour, linewidth=1.1, linestyle=look, label=label)
    if has_diverged:
        cross: dict[str, Any] = {"marker": "x", "markeredgewidth": 1.6, "linestyle": "none"}
        ax.plot(steps[-1:], deviation[-1:], markersize=7, color=colour, clip_on=False, zorder=3, **cross)
        ax.plot([], [], color=style.INK, label=DIVERGED, **cross)


FINDING = Finding("constants-load", "Fig. 9, appendix D.1", CLAIM, CRITERIA, (STUDY,), decide)
