"""How evenly experts are loaded in the course of training, at several learning rates and under sets of constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.analysis.balance import LoadBalance, load_balance
from expertp.figures import style
from expertp.figures.labels import seeds_label, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DIVERGED = "diverges"


@dataclass(frozen=True)
class LoadCurve:
    """The load of one model at one learning rate, and the running mean of its deviation, which is drawn."""

    log2_lr: float
    load: LoadBalance
    running_mean: tuple[float, ...]


@dataclass(frozen=True)
class ConstantsLoadData:
    """Curves by set of constants and increasing learning rate, and the most that a load can deviate."""

    sets: Mapping[str, tuple[LoadCurve, ...]]
    most: float

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return len(self.sets), 1.2

    @property
    def rates(self) -> list[float]:
        """All learning rates, log2, each once, in order."""
        return sorted({each.log2_lr for curves in self.sets.values() for each in curves})

    @property
    def last_step(self) -> int:
        """The end of training; a curve that ends before it has diverged."""
        return max((each.load.steps[-1] for curves in self.sets.values() for each in curves), default=0)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per set, learning rate and step that is drawn."""
        return [
            {
                "constants": name,
                "log2_lr": each.log2_lr,
                "step": each.load.steps[place],
                "max_load_deviation": each.load.max_deviation[place],
                "running_mean": each.running_mean[place],
                "seeds": each.load.n_seeds,
            }
            for name, curves in self.sets.items()
            for each in curves
            for place in thinned(each.load.steps)
        ]


def data(
    sets: Mapping[str, Mapping[float, Mapping[int, Sequence[Mapping[str, Any]]]]], most: float
) -> ConstantsLoadData:
    """Gather loads from records of metrics.jsonl.

    Args:
        sets: name of a set of constants -> log2 of the learning rate -> seed -> records.
        most: the most that a load can deviate, 1 - kappa.
    """
    found = {
        name: tuple(
            LoadCurve(log2_lr, load, _running_mean(load))
            for log2_lr in sorted(by_rate)
            if (load := load_balance(1.0, by_rate[log2_lr]))
        )
        for name, by_rate in sets.items()
    }
    return ConstantsLoadData(found, most)


def _running_mean(load: LoadBalance) -> tuple[float, ...]:
    """Return the deviation without its noise from batch to batch, under which late curves would hide each other.

    The mean is over the records within 5% of a record's place: on a logarithmic axis a window that is as wide at the
    start would flatten the fall.

    >>> _running_mean(LoadBalance(1.0, tuple(range(22)), (0.75,) * 20 + (0.0, 0.75), (0.0,) * 22, 1))[18:]
    (0.75, 0.75, 0.5, 0.375)
    """
    sums, n = np.concatenate([[0.0], np.cumsum(load.max_deviation)]), len(load.steps)
    places = np.arange(n)
    first, last = places - places // 20, np.minimum(n, places + places // 20 + 1)
    return tuple(((sums[last] - sums[first]) / (last - first)).tolist())


def draw(figure: Figure, found: ConstantsLoadData) -> None:
    """Draw a panel per set of constants, all on the whole range that there is."""
    grid = figure.subplots(1, max(1, len(found.sets)), squeeze=False, sharey=True)[0]
    for ax, (name, curves) in zip(grid, found.sets.items(), strict=True):
        if not curves:
            ax.set_title(name)
            style.nothing_here(ax, "no run yet")
            continue
        ax.set_title(f"{name} ({seeds_label(each.load.n_seeds for each in curves)})")
        _draw_set(ax, found, curves)
    grid[0].set_ylim(0, found.most)
    grid[0].set_ylabel("max |Load − κ|,\nrunning mean")
    handles = style.handles_of(grid)
    # A panel may lack a rate that another has.
    handles = {label: handles[label] for label in (*map(_label, found.rates), DIVERGED) if label in handles}
    style.figure_legend(figure, handles)


def _label(log2_lr: float) -> str:
    return f"log₂ lr {log2_lr:g}".replace("-", "\N{MINUS SIGN}")


def _draw_set(ax: Axes, found: ConstantsLoadData, curves: Sequence[LoadCurve]) -> None:
    style.faint_grid(ax)
    style.step_ticks(ax)
    for each in curves:
        place = found.rates.index(each.log2_lr)
        colour, shown = style.size_colour(place, len(found.rates)), thinned(each.load.steps)
        steps, deviation = (np.asarray(values, float) for values in (each.load.steps, each.running_mean))
        # Of many rates two neighbours have one colour; dashes tell them apart.
        ax.plot(
            steps[shown], deviation[shown], color=colour, linewidth=1.1, linestyle="--" if place % 2 else "-",
            label=_label(each.log2_lr),
        )  # fmt: skip
        if steps[-1] < found.last_step:
            ax.plot(
                steps[-1:], deviation[-1:], marker="x", markersize=7, markeredgewidth=1.6, color=colour,
                linestyle="none", clip_on=False, zorder=3,
            )  # fmt: skip
            ax.plot([], [], marker="x", markeredgewidth=1.6, color=style.INK, linestyle="none", label=DIVERGED)
    ax.set_xlabel("step")
