"""Early stopping in adaptive sweeps: a run that is far behind the zero-shot run of its size and seed is stopped.

    behind = training loss of the run - training loss of the zero-shot run, over the last tenth of the steps so far

At each check, a run that is behind by more than the check's margin is stopped. Checks lie at shares of the steps after
warm-up: before, runs with small learning rates are behind whatever becomes of them. The margins are at least three
times the largest distance by which any run that later had the lowest loss was behind, in recorded studies
(`benchmarks/early_stopping.py`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from expertp.spec import RunSpec, TrainSpec
from expertp.study.cells import Cell, zero_shot_value
from expertp.study.spec import ChoiceSpec, StudySpec
from expertp.training.records import Finite, StepMetrics
from expertp.util.records import Count

# Share of the steps so far over which training losses are averaged.
WINDOW = 0.1
# Schedules on which the margins were measured; runs with others are not stopped.
SCHEDULES = ("constant", "cosine")
# Octaves around the zero-shot value within which no run is stopped: these values decide the verdict.
NEAR = 1.0
# Values that differ by less are the same, octaves.
SAME = 1e-9


@dataclass(frozen=True)
class Check:
    """A comparison of a run with its zero-shot run.

    Args:
        share: share of the steps after warm-up.
        margin: a run that is behind by more nats is stopped.
    """

    share: float
    margin: float

    def step(self, train: TrainSpec) -> int:
        """Return the step of the check in a run.

        >>> Check(0.25, 0.45).step(TrainSpec(data="tokens", steps=300, batch_tokens=1024, warmup_steps=100))
        150
        """
        return train.warmup_steps + math.ceil(self.share * (train.steps - train.warmup_steps))


CHECKS = (Check(1 / 4, 0.45), Check(1 / 2, 0.2), Check(3 / 4, 0.15))


@dataclass(frozen=True)
class Comparison:
    """A run beside its zero-shot run; stops/IDENTITY.json has that of a run that was stopped.

    Args:
        step: the step up to which they are compared.
        train_loss: training loss of the run over the last tenth of the steps up to this one.
        zero_shot_loss: that of the zero-shot run.
    """

    step: Count
    train_loss: Finite
    zero_shot_loss: Finite

    @property
    def behind(self) -> float:
        """By how much the run is behind, nats."""
        return self.train_loss - self.zero_shot_loss


def find_stop(
    train: TrainSpec, steps_done: int, losses: Mapping[int, float], zero_shot: Mapping[int, float]
) -> Comparison | None:
    """Return the first check at which a run is too far behind its zero-shot run; None if it is at no check so far.

    Args:
        train: training settings of both runs.
        steps_done: steps that the run has taken.
        losses: its training losses by step.
        zero_shot: those of the zero-shot run.

    A check without losses of both runs at the same steps stops nothing.

    >>> train = TrainSpec(data="tokens", steps=100, batch_tokens=1024)
    >>> zero_shot = dict.fromkeys(range(1, 101), 3.0)
    >>> find_stop(train, 80, dict.fromkeys(range(1, 81), 3.18), zero_shot)
    Comparison(step=75, train_loss=3.18, zero_shot_loss=3.0)
    >>> find_stop(train, 74, dict.fromkeys(range(1, 75), 3.18), zero_shot) is None
    True
    """
    for check in CHECKS:
        step = check.step(train)
        found = compare_at(step, losses, zero_shot) if step <= steps_done else None
        if found is not None and found.behind > check.margin:
            return found
    return None


def compare_at(step: int, losses: Mapping[int, float], zero_shot: Mapping[int, float]) -> Comparison | None:
    """Return the training losses of two runs up to a step; None without losses of both at the same steps.

    >>> compare_at(10, {9: 3.0, 10: 3.2}, {10: 3.0}).behind == 3.2 - 3.0
    True
    """
    steps = [each for each in zero_shot if (1 - WINDOW) * step < each <= step]
    if not steps or any(each not in losses for each in steps):
        return None
    return Comparison(step, *(statistics.fmean(found[each] for each in steps) for found in (losses, zero_shot)))


def zero_shot_runs(study: StudySpec, cells: Iterable[Cell]) -> dict[RunSpec, RunSpec]:
    """Return the zero-shot run that each run is compared with, for those runs of an adaptive sweep that may be stopped.

    A run may be stopped if all its cells are far from the zero-shot value of their arm: farther than an octave, and
    beyond the next chosen value.
    """
    if study.chosen is None or study.train.schedule not in SCHEDULES:
        return {}
    cells = tuple(cells)
    zero_shot = {(cell.size.model, cell.arm, cell.seed): cell.run for cell in cells if cell.hp is None}
    kept = {cell.run for cell in cells if not _is_far(cell, study.chosen)}
    return {
        cell.run: zero_shot[cell.size.model, cell.arm, cell.seed]
        for cell in cells
        if cell.run not in kept and (cell.size.model, cell.arm, cell.seed) in zero_shot
    }


def _is_far(cell: Cell, chosen: Sequence[ChoiceSpec]) -> bool:
    """Return whether a cell lies farther from its zero-shot value than an octave and the next chosen value."""
    if cell.hp is None or cell.value is None:
        return False
    zero = zero_shot_value(cell.arm, cell.hp)
    away = cell.value - zero
    values = [value - zero for each in chosen if (each.axis, each.hp) == (cell.axis, cell.hp) for value in each.values]
    nearest = min((abs(each) for each in values if each * away > 0 and abs(each) > SAME), default=0.0)
    return abs(away) > max(NEAR, nearest) + SAME


class Watch:
    """A tracker (`expertp.training.train.Tracker`) that compares a run with its zero-shot run while it is trained.

    Args:
        zero_shot: training records of the zero-shot run.
        read_records: returns the records of the run itself, of steps before it was interrupted.
    """

    def __init__(self, zero_shot: Sequence[StepMetrics], read_records: Callable[[], Sequence[StepMetrics]]) -> None:
        self.stop: Comparison | None = None
        self._zero_shot, self._read_records = {each.step: each.loss for each in zero_shot}, read_records
        self._train: TrainSpec | None = None
        self._losses: dict[int, float] = {}

    def begin(self, run: RunSpec, steps_done: int) -> None:
        """Take up the records of earlier steps: a run that was interrupted is stopped at the same check."""
        self._train = run.train
        self._losses = {each.step: each.loss for each in self._read_records() if each.step <= steps_done}
        self.stop = find_stop(run.train, steps_done, self._losses, self._zero_shot)

    def log(self, metrics: StepMetrics) -> None:
        """Take up the loss of a step, and compare if a check is due."""
        assert self._train is not None, "begin comes first"
        self._losses[metrics.step] = metrics.loss
        if any(metrics.step == check.step(self._train) for check in CHECKS):
            self.stop = self.stop or find_stop(self._train, metrics.step, self._losses, self._zero_shot)

    def end(self) -> None:
        """Do nothing."""
