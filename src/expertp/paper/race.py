"""MoE models with zero-shot hyperparameters against a tuned dense model: loss over tokens and over training time.

Shared by speedrun and medium. A MoE model competes if its final loss is at most `EQUAL` above the dense one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from expertp.analysis.collapse import Floats, default_window, smoothed
from expertp.analysis.curves import curve
from expertp.analysis.paired import paired
from expertp.analysis.seed_curves import Records, seed_curves, training_losses
from expertp.figures import style
from expertp.figures.labels import HP_SHORT, LOSS, known, seeds_label, thinned
from expertp.figures.save import render
from expertp.paper.finding import Outcome, complete_records, is_positive
from expertp.paper.transfer import SAME, is_same
from expertp.study.cells import swept_on
from expertp.study.table import CellResult, StudyTable
from expertp.util.text import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DENSE = "dense, tuned"
# Final losses that differ by at most this are equal, in nats.
EQUAL = 0.02
# The last sentence of the criterion of a race.
OPEN = (
    "It is open while the dense model's best learning rate or init std is an end of its grid, or differs by more than "
    f"{SAME:g} octaves from the value at which the other was swept."
)
# With fewer validations, the curve is that of training losses.
MIN_VALIDATIONS = 4
# The figure leaves out the start, where all models are alike and far above their final loss; share of the tokens.
SHOWN_FROM = 0.1
STATISTICS: Mapping[str, Callable[[Floats], Any]] = {"mean": np.mean, "min": np.min, "max": np.max}


def dense_sections(n_embd: int, n_layer: int, alpha_ffn: float = 4, **hps: Any) -> dict[str, Any]:
    """Return base, hyperparameters and axis of a study of a dense model."""
    shape = {"n_embd": n_embd, "n_layer": n_layer, "ffn": "dense", "n_exp": 1, "n_act": 1, "alpha_ffn": alpha_ffn}
    return {"base": shape, "hps": hps, "axes": {"width": [n_embd]}}


# On cpu, the dense model has the constants of the MoE models, and its optimum in a pilot (docs/results/paper/pilots):
# by standard rules and with all constants one, it ended 0.12 nats higher. An earlier dense model had the seeds 0 to 2.
DENSE_CPU: Mapping[str, Any] = {"lr": 2**-6.5, "init_std": 2**-4}
DENSE_GRIDS: Mapping[str, Any] = {"lr_octaves": [-1, -0.5, 0, 0.5, 1], "init_octaves": [-1, -0.5, 0, 0.5, 1]}
STANDARD: Mapping[str, Any] = {"rules": "sp", "constants": "ones"}
RACE_SEEDS = [3, 4, 5]


@dataclass(frozen=True, eq=False)
class ModelCurve:
    """One model of a race.

    Args:
        label: its name.
        is_ours: whether the others are compared with this model.
        finals: final losses by seed; inf where a run has diverged.
        tokens_T: tokens seen, per point.
        seconds_T: training time, mean over seeds, per point.
        losses_ST: loss per seed and point; nan where a run has none, for example after it has diverged.
        is_validation: False where the losses are smoothed training losses.
    """

    label: str
    is_ours: bool
    finals: Sequence[float]
    tokens_T: Floats
    seconds_T: Floats
    losses_ST: Floats
    is_validation: bool

    @property
    def mean_T(self) -> Floats:
        """Mean loss over seeds, per point; nan once a run has diverged."""
        mean_T: Floats = self.losses_ST.mean(axis=0)
        return mean_T

    @property
    def has_diverged(self) -> bool:
        """Whether any run has diverged; its curve ends early then, however low, and the model does not compete."""
        return math.inf in self.finals

    @property
    def final(self) -> float:
        """Mean final loss over seeds; inf where a run has diverged."""
        return float(np.mean(self.finals))

    def __str__(self) -> str:
        return f"{self.label} {'diverges' if self.has_diverged else f'{self.final:.3f}'}"


def decide_race(
    moe: Mapping[str, StudyTable],
    dense: StudyTable,
    ahead: Sequence[tuple[str, str]] = (),
    equal: Sequence[tuple[str, str]] = (),
) -> Outcome:
    """Draw MoE models beside a dense model, and judge the claim that each of them competes with it.

    Args:
        moe: joint axis -> its study; the model is the largest of the axis.
        dense: the study of the dense model, which sweeps its own learning rate and init std.
        ahead: pairs of axes of which the first is claimed to end below the second.
        equal: pairs of axes that are claimed to end with equal losses.
    """
    models = {axis: _zero_shot(table, axis) for axis, table in moe.items()}
    baseline, untuned = _best_dense(dense)
    shown = (*models.values(), baseline)
    drawings = (render("race", draw, RaceData(shown)),)
    why = f"Final loss: {'; '.join(map(str, shown))}."
    if untuned:
        why += f" The dense model may not be tuned: {', '.join(untuned)}."
    if baseline.has_diverged:
        return Outcome([None], [None], "the dense model diverges at every value of its grids", why, drawings)
    measured, parts = [], []
    paper_parts: list[bool | None] = [each.final <= baseline.final for each in models.values()]
    paper_parts += [models[first].final < models[second].final for first, second in ahead]
    paper_parts += [abs(models[first].final - models[second].final) <= EQUAL for first, second in equal]
    for each in models.values():
        gap = paired(baseline.finals, each.finals)
        competes = False if each.has_diverged else paired(each.finals, baseline.finals).is_at_most(EQUAL)
        parts.append(None if competes and untuned else competes)
        needed = cost_of_reaching(each, baseline) if gap.mean >= 0 else None
        by = f" (reaches its loss with {needed[0]:.0%} of its tokens, in {needed[1]:.0%} of its time)" if needed else ""
        measured.append(f"tuned dense model minus {each.label} {gap}{by}")
    for first, second in ahead:
        gap = paired(models[second].finals, models[first].finals)
        parts.append(is_positive(gap))
        measured.append(f"{second} minus {first} {gap}")
    for first, second in equal:
        gap = paired(models[first].finals, models[second].finals)
        parts.append(replace(gap, mean=abs(gap.mean)).is_at_most(EQUAL))
        measured.append(f"{first} minus {second} {gap} (equal if within {EQUAL})")
    return Outcome(parts, paper_parts, f"difference in final loss: {'; '.join(measured)}", why, drawings)


def _zero_shot(table: StudyTable, axis: str) -> ModelCurve:
    """Return the largest model of a joint axis with the base's hyperparameters."""
    rows = table.where(axis=axis, size=table.sizes(axis)[-1], arm=table.own, hp=None)
    return _model(f"MoE {axis}", table, rows, is_ours=True)


def _best_dense(table: StudyTable) -> tuple[ModelCurve, list[str]]:
    """Return the dense model at its lowest median loss, and why it may have a lower one, if it may.

    It may where the best value of a grid is its first or last, or lies off the values at which the two grids meet.
    """
    axis = table.axes[0]
    found = [curve(table, axis, table.base(axis), table.own, hp) for hp in swept_on(table.study, axis)]
    swept = [each for each in found if each is not None]
    best = min(swept, key=lambda each: each.medians[each.best_place])
    rows = table.where(axis=axis, size=best.size, arm=table.own, hp=best.hp, value=best.best_value)
    untuned = []
    for each in swept:
        value = f"its best {HP_SHORT[each.hp]} of the grid, 2^{each.best_value:g},"
        if each.is_best_at_edge:
            untuned.append(f"{value} is an end of the grid")
        elif not is_same(each.best_value, each.centre):
            untuned.append(f"{value} is not near 2^{each.centre:g}, at which the other grid was swept")
    return _model(DENSE, table, rows, is_ours=False), untuned


def _model(label: str, table: StudyTable, rows: tuple[CellResult, ...], is_ours: bool) -> ModelCurve:
    return model_curve(label, complete_records(table, rows), is_ours, [row.result.loss for row in rows])


def model_curve(label: str, records: Records, is_ours: bool, finals: Sequence[float] = ()) -> ModelCurve:
    """Return the curve of a model from its training records.

    Losses are validation losses where there are at least `MIN_VALIDATIONS`, else training losses.
    """
    validation = seed_curves(records, lambda record: record.val_loss)
    is_validated = ~np.isnan(validation.values_ST).all(0)
    is_validation = int(is_validated.sum()) >= MIN_VALIDATIONS
    steps = np.asarray(validation.steps, int)[is_validated].tolist() if is_validation else validation.steps
    assert steps, f"{label} has records"
    losses_ST = (validation if is_validation else training_losses(records)).at(steps)
    tokens_ST = seed_curves(records, lambda record: record.tokens).at(steps)
    seconds_ST = seed_curves(records, lambda record: record.seconds).at(steps)
    whole = len(steps)
    if not is_validation:
        window = default_window(len(steps))
        losses_ST = smoothed(losses_ST, window)
        # The running mean narrows towards the end, where a single batch would decide.
        whole -= window // 2
    tokens_T, seconds_T = (np.nanmean(values_ST, axis=0)[:whole] for values_ST in (tokens_ST, seconds_ST))
    return ModelCurve(label, is_ours, finals, tokens_T, seconds_T, losses_ST[:, :whole], is_validation)


def cost_of_reaching(ours: ModelCurve, theirs: ModelCurve) -> tuple[float, float] | None:
    """Return the shares of theirs in tokens and in seconds with which ours reaches the final loss of theirs.

    None where ours never reaches it, where theirs has diverged, or where the two losses are of different kinds.
    """
    if ours.is_validation != theirs.is_validation:
        return None
    place = _first_at(ours.mean_T, theirs.mean_T[-1])
    if place is None:
        return None
    tokens, seconds = (np.interp(place, range(len(x_T)), x_T) for x_T in (ours.tokens_T, ours.seconds_T))
    return float(tokens / theirs.tokens_T[-1]), float(seconds / theirs.seconds_T[-1])


def _first_at(curve: Floats, level: float) -> float | None:
    """Return the place at which a curve first falls to a level, interpolated linearly between its points.

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


@dataclass(frozen=True)
class RaceData:
    """All models, in the order of their colours."""

    curves: tuple[ModelCurve, ...]
    shape: tuple[float, float] = (2, 1.3)  # columns and rows of panels

    @property
    def of(self) -> str:
        """Label of the losses, with their unit."""
        kinds = {each.is_validation for each in self.curves}
        if kinds == {True, False}:
            return "loss, validation or training (nats)"
        return "training loss, smoothed (nats)" if kinds == {False} else LOSS

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per model and drawn point."""
        return [
            {
                "model": each.label,
                "is_ours": each.is_ours,
                "loss_of": "validation" if each.is_validation else "training",
                "tokens": float(each.tokens_T[place]),
                "seconds": float(each.seconds_T[place]),
                **{name: known(float(of(each.losses_ST[:, place]))) for name, of in STATISTICS.items()},
                "seeds": len(each.losses_ST),
            }
            for each in self.curves
            for place in thinned(each.tokens_T.tolist())
        ]


def draw(figure: Figure, race: RaceData) -> None:
    """Draw the curves over tokens (left) and over seconds (right)."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    grid = figure.subplots(1, 2, sharey=True)
    for ax, field in zip(grid, ("tokens_T", "seconds_T"), strict=True):
        style.faint_grid(ax)
        for place, each in enumerate(race.curves):
            _draw_curve(ax, each, field, style.size_colour(place, len(race.curves)), style.marker(place))
        ax.set_xlim(0, 1.02 * max((getattr(each, field)[-1] for each in race.curves), default=1))
        ax.xaxis.set_major_locator(MaxNLocator(5))
    grid[0].xaxis.set_major_formatter(FuncFormatter(lambda value, _place: count(value)))
    grid[0].set_xlabel("tokens")
    grid[1].set_xlabel("seconds of training")
    seeds = seeds_label(len(each.losses_ST) for each in race.curves)
    grid[0].set_ylabel(f"{race.of}\nmean and range of {seeds}")
    grid[0].set_ylim(*loss_range(race.curves))
    style.figure_legend(figure, style.handles_of(grid))


def _draw_curve(ax: Axes, each: ModelCurve, field: str, colour: str, marker: str) -> None:
    shown = thinned(each.tokens_T.tolist())
    x, losses, final = getattr(each, field)[shown], each.losses_ST[:, shown], each.mean_T[-1]
    ending = "diverged" if math.isnan(final) else f"{final:.2f}"
    ax.fill_between(x, losses.min(0), losses.max(0), color=colour, alpha=style.BAND, linewidth=0)
    ax.plot(
        x, losses.mean(0), color=colour, linestyle="-" if each.is_ours else "--",
        linewidth=1.8 if each.is_ours else 1.3, marker=marker, markersize=4, markevery=max(1, len(shown) // 8),
        label=f"{each.label}, {ending}",
    )  # fmt: skip


def loss_range(curves: Sequence[ModelCurve]) -> tuple[float, float]:
    """Return the range of losses to show, without the start of training."""
    late = [each.losses_ST[:, each.tokens_T >= SHOWN_FROM * each.tokens_T[-1]] for each in curves]
    losses = np.concatenate([each[np.isfinite(each)] for each in late]) if late else np.array([])
    if not losses.size:
        return 0.0, 1.0
    low, high = float(losses.min()), float(losses.max())
    room = max(high - low, 0.02)
    return low - 0.06 * room, high + 0.06 * room
