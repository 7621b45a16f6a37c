"""Loss over the values of one hyperparameter, from a study's table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from expertp.study.cells import Arm, Size, zero_shot_value
from expertp.study.spec import HP
from expertp.study.table import StudyTable


@dataclass(frozen=True)
class Curve:
    """Final validation losses of one model over a grid of one hyperparameter.

    Args:
        axis: the axis.
        size: the model on it.
        arm: rule set and hyperparameters.
        hp: the hyperparameter that the grid sets.
        log2_values: the grid, increasing.
        losses: `losses[value][seed]`; inf where a run has diverged or was stopped, nan where there is no result or no
            cell.
        seeds: the seeds, in the order of `losses[value]`.
        n_missing: number of cells without a result per value.
        n_stopped: number of stopped runs per value; empty: none.
    """

    axis: str
    size: Size
    arm: Arm
    hp: HP
    log2_values: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]
    seeds: tuple[int, ...]
    n_missing: tuple[int, ...]
    n_stopped: tuple[int, ...] = ()

    @property
    def centre(self) -> float:
        """Log2 of the hyperparameter's value in zero-shot runs; one of `log2_values` where the curve has it."""
        value = zero_shot_value(self.arm, self.hp)
        return next((each for each in self.log2_values if math.isclose(each, value, abs_tol=1e-9)), value)

    @property
    def zero_shot_losses(self) -> tuple[float, ...]:
        """Losses of the zero-shot runs, one per seed; none where the curve does not have their value."""
        return dict(zip(self.log2_values, self.losses, strict=True)).get(self.centre, ())

    @property
    def n_diverged(self) -> tuple[int, ...]:
        """Number of diverged runs per value."""
        stopped = self.n_stopped or (0,) * len(self.losses)
        return tuple(losses.count(math.inf) - n for losses, n in zip(self.losses, stopped, strict=True))

    @property
    def stopped_values(self) -> tuple[float, ...]:
        """Values at which runs were stopped, log2."""
        return tuple(value for value, n in zip(self.log2_values, self.n_stopped, strict=False) if n)

    @property
    def n_seeds(self) -> int:
        """Number of seeds per value."""
        return len(self.seeds)

    @property
    def compared(self) -> tuple[tuple[float, ...], ...]:
        """The losses per value that medians and figures compare: of the seeds with a result at every value.

        A seed shifts the losses at all values alike, so one at some values only, such as that of zero-shot, would bend
        the curve. A value at which a run has diverged or was stopped keeps all its losses, and so do all values where
        no seed has all results.
        """
        known = [losses for losses in self.losses if not all(map(math.isnan, losses))]
        places = [place for place in range(self.n_seeds) if not any(math.isnan(losses[place]) for losses in known)]
        return tuple(
            losses if math.inf in losses or not places else tuple(losses[place] for place in places)
            for losses in self.losses
        )

    @property
    def medians(self) -> tuple[float, ...]:
        """Median of the compared losses per value: inf where any run has diverged or was stopped, nan without results.

        One such run is enough: its value cannot be the best, and a median over the other seeds would be biased.
        """
        return tuple(_median(losses) for losses in self.compared)

    @property
    def best_place(self) -> int:
        """Index of the lowest median in the grid; 0 where runs diverge at every value."""
        medians = [median if math.isfinite(median) else math.inf for median in self.medians]
        return medians.index(min(medians))

    @property
    def best_value(self) -> float:
        """Grid value with the lowest median, log2."""
        return self.log2_values[self.best_place]

    @property
    def is_best_at_edge(self) -> bool:
        """Whether the best value is the first or last of the grid, so that the true optimum may lie beyond it."""
        return self.best_place in (0, len(self.losses) - 1)


def _median(losses: Sequence[float]) -> float:
    if math.inf in losses:
        return math.inf
    known = [loss for loss in losses if not math.isnan(loss)]
    return float(np.median(known)) if known else math.nan


def curve(table: StudyTable, axis: str, size: Size, arm: Arm, hp: HP) -> Curve | None:
    """Return the loss curve of an arm at a size, or None where the study does not sweep it.

    Zero-shot runs are part of it, whether the grid has their value or not. Those of seeds that only another curve has
    are part of it where they have a result.
    """
    swept = table.where(axis=axis, size=size, arm=arm, hp=hp)
    if not swept:
        return None
    by_value: dict[float, dict[int, float]] = {}
    stopped = Counter[float]()
    for row in swept:
        assert row.cell.value is not None, "a swept cell has a value"
        by_value.setdefault(row.cell.value, {})[row.cell.seed] = row.result.loss
        stopped[row.cell.value] += row.result.status == "stopped"
    zero = zero_shot_value(arm, hp)
    at_zero = next((value for value in by_value if math.isclose(value, zero, abs_tol=1e-9)), zero)
    own_seeds = {row.cell.seed for row in swept}
    for row in table.where(axis=axis, size=size, arm=arm, hp=None):
        if row.cell.seed in own_seeds or not math.isnan(row.result.loss):
            by_value.setdefault(at_zero, {}).setdefault(row.cell.seed, row.result.loss)
    values, seeds = sorted(by_value), sorted({seed for found in by_value.values() for seed in found})
    return Curve(
        axis=axis,
        size=size,
        arm=arm,
        hp=hp,
        log2_values=tuple(values),
        losses=tuple(tuple(by_value[value].get(seed, math.nan) for seed in seeds) for value in values),
        seeds=tuple(seeds),
        n_missing=tuple(sum(map(math.isnan, by_value[value].values())) for value in values),
        n_stopped=tuple(stopped[value] for value in values),
    )


def curves(table: StudyTable, axis: str, arm: Arm, hp: HP) -> tuple[Curve, ...]:
    """Return the loss curves of an arm along an axis, those that the study sweeps, by increasing scale."""
    found = [curve(table, axis, size, arm, hp) for size in table.sizes(axis)]
    return tuple(each for each in found if each is not None)
