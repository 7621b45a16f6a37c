"""The path of a coordinate descent: what every candidate changes, in loss and in how evenly experts are loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from expertp.figures import style
from expertp.tune import Trial, ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Changes of less than this are drawn to scale, larger ones by their logarithm.
LINEAR_BELOW = 0.02
LOOKS = {"taken": ("taken", style.PASS), "left": ("no gain", style.UNDECIDED), "unstable": ("less stable", style.FAIL)}


@dataclass(frozen=True)
class DescentData:
    """The start, and all candidates by pass, in the order in which they were tried."""

    start: Trial
    passes: tuple[tuple[Trial, ...], ...]

    @property
    def coordinates(self) -> list[str]:
        """What was tried, each once."""
        return list(dict.fromkeys(trial.coordinate for trials in self.passes for trial in trials))

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return 2 * len(self.passes), 0.5 + 0.1 * max(1, len(self.coordinates))

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per candidate, the start first."""
        numbered = [(0, self.start)]
        numbered += [(number, trial) for number, trials in enumerate(self.passes, 1) for trial in trials]
        return [_row(number, trial) for number, trial in numbered]


def _row(number: int, trial: Trial) -> dict[str, Any]:
    above = trial.above
    numbers = {
        "value": trial.value,
        "loss": trial.loss,
        "change": trial.change.mean,
        "error": trial.change.error,
        "load": trial.outcome.load,
        "load_above": above.load if above else math.nan,
    }
    return {
        "pass": number,
        "coordinate": trial.coordinate,
        **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
        "diverged": trial.outcome.diverged,
        "diverged_above": above.diverged if above else None,
        "verdict": trial.verdict,
        "why": trial.why,
    }


def data(path: Sequence[Trial]) -> DescentData:
    """Part a path into its passes: a new one begins where a coordinate comes again."""
    start, *trials = path
    passes: list[list[Trial]] = [[]]
    for trial in trials:
        seen = [each.coordinate for each in passes[-1]]
        if trial.coordinate in seen and trial.coordinate != seen[-1]:
            passes.append([])
        passes[-1].append(trial)
    return DescentData(start, tuple(map(tuple, passes)))


def draw(figure: Figure, descent: DescentData) -> None:
    """Draw a row per coordinate and, for each pass, the change of loss and the load of all that was tried."""
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
        losses.set_xlabel(
            f"change of loss (nats), 95% of\nn = {len(descent.start.outcome.losses)} seeds; ◁ smaller, ▷ larger value"
        )
        loads.set_xlabel("max |Load − κ|,\nlast quarter")
        loads.set_xlim(left=0)
    grid[0].set_yticks(range(len(rows)), list(rows))
    grid[0].set_ylim(max(1, len(rows)) - 0.5, -0.8)
    style.figure_legend(figure, style.handles_of(grid))


def _nat_ticks(ax: Axes) -> None:
    """Draw small changes to scale and larger ones by their logarithm, with plain numbers."""
    ax.set_xscale("symlog", linthresh=LINEAR_BELOW)
    low, high = ax.get_xlim()
    there = [value for value in (-1, -0.1, 0, LINEAR_BELOW, 0.1, 1) if low <= value <= high]
    ax.set_xticks(there, [f"{value:g}".replace("-", "\N{MINUS SIGN}") for value in there])
    ax.minorticks_off()


def _draw_trial(losses: Axes, loads: Axes, row: int, trial: Trial) -> None:
    label, colour = LOOKS[trial.verdict]
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
