"""Loss of several models against the tokens that they have seen, and against the time that this took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.analysis.collapse import Floats, default_window, smoothed
from expertp.figures import style
from expertp.figures.labels import LOSS, known, seeds_label, thinned
from expertp.wording import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Fewer validations make no curve.
ENOUGH = 4
# The start, at which all models are alike and far above their end, is left out.
SHOWN_FROM = 0.1


@dataclass(frozen=True)
class Runner:
    """The loss of one model in the course of training.

    Args:
        label: what the model is called.
        tokens: seen so far, per point.
        seconds: of training so far, mean over seeds, per point.
        losses: `losses[seed][point]`; nan where a run has no loss, such as after it has diverged.
        is_ours: whether others are set beside this one.
        is_validation: False where the losses are those of training batches, smoothed.
    """

    label: str
    tokens: tuple[float, ...]
    seconds: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]
    is_ours: bool
    is_validation: bool = True

    @property
    def mean(self) -> Floats:
        """Mean over seeds per point; nan from the point on at which one of them has diverged."""
        mean: Floats = np.mean(self.losses, axis=0)
        return mean

    @property
    def final(self) -> float:
        """Mean over seeds at the end."""
        return float(self.mean[-1])


@dataclass(frozen=True)
class RaceData:
    """All models, in the order of their colours."""

    runners: tuple[Runner, ...]

    @property
    def shape(self) -> tuple[float, float]:
        """Columns and rows."""
        return 2, 1.3

    @property
    def of(self) -> str:
        """What the losses are, with their unit."""
        kinds = {each.is_validation for each in self.runners}
        if kinds == {True, False}:
            return "loss, validation or training (nats)"
        return "training loss, smoothed (nats)" if kinds == {False} else LOSS

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per model and point that is drawn."""
        return [
            {
                "model": each.label,
                "is_ours": each.is_ours,
                "loss_of": "validation" if each.is_validation else "training",
                "tokens": each.tokens[place],
                "seconds": each.seconds[place],
                "mean": known(mean[place]),
                "min": known(low[place]),
                "max": known(high[place]),
                "seeds": len(each.losses),
            }
            for each in self.runners
            for mean, low, high in [[values.tolist() for values in _band(each)]]
            for place in thinned(each.tokens)
        ]


def data(runners: Sequence[Runner]) -> RaceData:
    """Set models beside each other."""
    return RaceData(tuple(runners))


def runner(label: str, records: Mapping[int, Sequence[Mapping[str, Any]]], is_ours: bool) -> Runner | None:
    """Return the curve of a model from the records of metrics.jsonl per seed; None where there is none.

    Losses are those of validation where there are enough of them, else those of training batches.
    """
    there = [of_seed for of_seed in records.values() if of_seed]
    validated = {record["step"] for of_seed in there for record in of_seed if record["val_loss"] is not None}
    is_validation = len(validated) >= ENOUGH
    by_seed = [{record["step"]: record for record in of_seed} for of_seed in there]
    steps = sorted(validated if is_validation else {step for of_seed in by_seed for step in of_seed})
    if not steps:
        return None
    tokens, seconds = (_matrix(by_seed, steps, field) for field in ("tokens", "seconds"))
    losses = _matrix(by_seed, steps, "val_loss" if is_validation else "loss")
    whole = len(steps)
    if not is_validation:
        window = default_window(len(steps))
        losses = smoothed(losses, window)
        # The very last records are hardly smoothed, and one hard batch would decide.
        whole -= window // 2
    return Runner(
        label=label,
        tokens=tuple(np.nanmean(tokens, axis=0)[:whole].tolist()),
        seconds=tuple(np.nanmean(seconds, axis=0)[:whole].tolist()),
        losses=tuple(map(tuple, losses[:, :whole].tolist())),
        is_ours=is_ours,
        is_validation=is_validation,
    )


def _matrix(by_seed: Sequence[Mapping[int, Mapping[str, Any]]], steps: Sequence[int], field: str) -> Floats:
    """Return a field [seed, step]; nan where a run has no record or no number."""
    found = [[of_seed.get(step, {}).get(field) for step in steps] for of_seed in by_seed]
    return np.array([[math.nan if value is None else value for value in of_seed] for of_seed in found], float)


def speedup(ours: Runner, theirs: Runner) -> tuple[float, float] | None:
    """Return how many times fewer tokens, and seconds, ours takes to come down to the loss at which theirs ends.

    None where it never does, where theirs has diverged, or where the two losses are not of one kind.
    """
    if ours.is_validation != theirs.is_validation:
        return None
    place = _first_at(ours.mean, theirs.final)
    if place is None:
        return None
    tokens, seconds = (np.interp(place, range(len(values)), values) for values in (ours.tokens, ours.seconds))
    return float(theirs.tokens[-1] / tokens), float(theirs.seconds[-1] / seconds)


def _first_at(curve: Floats, level: float) -> float | None:
    """Return the place at which a curve first comes down to a level, on a straight line between its points.

    >>> _first_at(np.array([5.0, 4.0, 2.0, 3.0]), 3.0), _first_at(np.array([5.0, 4.0]), 3.0)
    (1.5, None)
    """
    below = np.flatnonzero(curve <= level)
    if not below.size:
        return None
    place = int(below[0])
    if place == 0 or math.isnan(curve[place - 1]):
        return float(place)
    return float(place - 1 + (curve[place - 1] - level) / (curve[place - 1] - curve[place]))


def draw(figure: Figure, race: RaceData) -> None:
    """Draw the same curves twice, over tokens on the left and over seconds on the right."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    grid = figure.subplots(1, 2, sharey=True)
    for ax, field in zip(grid, ("tokens", "seconds"), strict=True):
        style.faint_grid(ax)
        for place, each in enumerate(race.runners):
            _draw_runner(ax, each, field, style.size_colour(place, len(race.runners)), style.marker(place))
        ax.set_xlim(0, 1.02 * max((getattr(each, field)[-1] for each in race.runners), default=1))
        ax.xaxis.set_major_locator(MaxNLocator(5))
    grid[0].xaxis.set_major_formatter(FuncFormatter(lambda value, _place: count(value)))
    grid[0].set_xlabel("tokens")
    grid[1].set_xlabel("seconds of training")
    seeds = seeds_label(len(each.losses) for each in race.runners)
    grid[0].set_ylabel(f"{race.of}\nmean and range of {seeds}")
    grid[0].set_ylim(*loss_range(race.runners))
    style.figure_legend(figure, style.handles_of(grid))


def _draw_runner(ax: Axes, each: Runner, field: str, colour: str, marker: str) -> None:
    shown = thinned(each.tokens)
    x = np.asarray(getattr(each, field))[shown]
    mean, low, high = (values[shown] for values in _band(each))
    ending = "diverged" if math.isnan(each.final) else f"{each.final:.2f}"
    ax.fill_between(x, low, high, color=colour, alpha=style.BAND, linewidth=0)
    ax.plot(
        x, mean, color=colour, linestyle="-" if each.is_ours else "--", linewidth=1.8 if each.is_ours else 1.3,
        marker=marker, markersize=4, markevery=max(1, len(shown) // 8), label=f"{each.label}, {ending}",
    )  # fmt: skip


def _band(each: Runner) -> tuple[Floats, Floats, Floats]:
    """Return mean, least and largest over seeds."""
    return each.mean, np.min(each.losses, axis=0), np.max(each.losses, axis=0)


def loss_range(runners: Sequence[Runner]) -> tuple[float, float]:
    """Return the losses to show: those of all models but for their start."""
    late = [np.asarray(each.losses)[:, np.asarray(each.tokens) >= SHOWN_FROM * each.tokens[-1]] for each in runners]
    losses = np.concatenate([each[np.isfinite(each)] for each in late]) if late else np.array([])
    if not losses.size:
        return 0.0, 1.0
    low, high = float(losses.min()), float(losses.max())
    room = max(high - low, 0.02)
    return low - 0.06 * room, high + 0.06 * room
