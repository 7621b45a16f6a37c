"""The path of a coordinate descent: change of loss and expert load of every candidate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from expertp.figures import style
from expertp.figures.labels import minus, seeds_label
from expertp.figures.save import FigureData, Value
from expertp.figures.style import Axes, Figure
from expertp.search.tune import Trial, ratio

# The loss axis is linear below this change and logarithmic above.
LINEAR_BELOW = 0.02
LOOKS = {"taken": ("taken", style.PASS), "left": ("no gain", style.UNDECIDED), "unstable": ("less stable", style.FAIL)}


@dataclass(frozen=True)
class DescentData(FigureData):
    """The start, and all candidates by pass in the order of trial."""

    columns = (
        "pass", "coordinate", "value", "loss", "change", "error", "load", "load_above", "diverged", "diverged_above",
        "verdict", "why",
    )  # fmt: skip
    start: Trial
    passes: tuple[tuple[Trial, ...], ...]

    @property
    def coordinates(self) -> list[str]:
        """All coordinates that were tried."""
        return list(dict.fromkeys(trial.coordinate for trials in self.passes for trial in trials))

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return 2 * len(self.passes), 0.5 + 0.1 * max(1, len(self.coordinates))

    def records(self) -> Iterator[Sequence[Value]]:
        """Return one row per candidate, the start first."""
        for number, trials in enumerate(((self.start,), *self.passes)):
            for trial in trials:
                above = trial.above
                numbers = (trial.value, trial.loss, trial.change.mean, trial.change.error, trial.outcome.load)
                finite = [
                    value if math.isfinite(value) else None for value in (*numbers, above.load if above else math.nan)
                ]
                diverged = (trial.outcome.diverged, above.diverged if above else None)
                yield number, trial.coordinate, *finite, *diverged, trial.decision, trial.why


def data(path: Sequence[Trial]) -> DescentData:
    """Split a path into passes; a new pass starts where a coordinate occurs again."""
    start, *trials = path
    passes: list[list[Trial]] = [[]]
    for trial in trials:
        seen = [each.coordinate for each in passes[-1]]
        if trial.coordinate in seen and trial.coordinate != seen[-1]:
            passes.append([])
        passes[-1].append(trial)
    return DescentData(start, tuple(map(tuple, passes)))


def draw(figure: Figure, descent: DescentData) -> None:
    """Draw a row per coordinate and, for each pass, the change of loss and the load of every candidate."""
    grid = figure.subplots(1, 2 * len(descent.passes), sharey=True, squeeze=False)[0]
    rows = {name: place for place, name in enumerate(descent.coordinates)}
    for number, trials in enumerate(descent.passes):
        losses, loads = grid[2 * number : 2 * number + 2]
        losses.set_title(f"pass {number + 1}")
        for ax in (losses, loads):
            style.faint_grid(ax)
        for trial in trials:
            _draw_trial(losses, loads, rows[trial.coordinate], trial)
        losses.axvline(0, color=style.INK, linewidth=0.8)
        _nat_ticks(losses)
        seeds = seeds_label([len(descent.start.outcome.losses)])
        losses.set_xlabel(f"change of loss (nats), 95% of\n{seeds}; ◁ smaller, ▷ larger value")
        loads.set_xlabel("max |Load − κ|,\nlast quarter")
        loads.set_xlim(left=0)
    grid[0].set_yticks(range(len(rows)), list(rows))
    grid[0].set_ylim(max(1, len(rows)) - 0.5, -0.8)
    style.figure_legend(figure)


def _nat_ticks(ax: Axes) -> None:
    """Scale the loss axis symmetrically in its logarithm, with plain numbers at its ticks."""
    ax.set_xscale("symlog", linthresh=LINEAR_BELOW)
    low, high = ax.get_xlim()
    there = [value for value in (-1, -0.1, 0, LINEAR_BELOW, 0.1, 1) if low <= value <= high]
    ax.set_xticks(there, [minus(f"{value:g}") for value in there])
    ax.minorticks_off()


def _draw_trial(losses: Axes, loads: Axes, row: int, trial: Trial) -> None:
    label, colour = LOOKS[trial.decision]
    is_larger = trial.factor > 1
    look: dict[str, Any] = {
        "marker": ">" if is_larger else "<", "color": colour, "linestyle": "none", "markersize": 6,
        "markerfacecolor": colour if trial.is_taken else "none", "label": label,
    }  # fmt: skip
    place = row + (0.18 if is_larger else -0.18)
    losses.errorbar([trial.change.mean], [place], xerr=[trial.change.half_width], elinewidth=1, **look)
    loads.plot([trial.outcome.load], [place], **look)
    if trial.is_taken:
        losses.annotate(
            ratio(trial.value), (trial.change.mean, place), xytext=(0, 5), textcoords="offset points", ha="center",
            fontsize=8,
        )  # fmt: skip
