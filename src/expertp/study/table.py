"""StudyTable: the cells of a study joined with the results of their runs, once; everything else asks it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypedDict, Unpack

from expertp.spec import RunSpec
from expertp.study.cells import Arm, Cell, Size, arms, axis_names, expand, own_arm
from expertp.study.spec import HP, ChoiceSpec, StudySpec
from expertp.training.records import StepMetrics

ResultStatus = Literal["finished", "diverged", "stopped", "failed", "damaged", "unfinished", "missing"]
# Runs with one of these statuses have all their records.
DONE = ("finished", "diverged")
# These runs are results: the same sweep does not train them again. Those of ENDED are not trained any further.
SETTLED = (*DONE, "stopped")
ENDED = (*SETTLED, "failed", "damaged")


@dataclass(frozen=True)
class Result:
    """Status of one run of a study, and the numbers of its summary; they are None for a run that has no summary."""

    run: RunSpec
    identity: str
    status: ResultStatus
    step: int = 0
    train_loss: float | None = None
    val_loss: float | None = None
    max_load_deviation: float | None = None
    dead_experts: int | None = None
    seconds: float | None = None
    error: str = ""

    @property
    def loss(self) -> float:
        """Final validation loss: inf where the run diverged or was stopped, nan where there is none.

        Neither is ever the lowest, and no mean or median includes it.
        """
        if self.status in ("diverged", "stopped"):
            return math.inf
        return self.val_loss if self.status == "finished" and self.val_loss is not None else math.nan


@dataclass(frozen=True)
class CellResult:
    """A cell and the result of its run."""

    cell: Cell
    result: Result


class Labels(TypedDict, total=False):
    """Labels of a cell that rows can be selected by."""

    axis: str
    size: Size
    arm: Arm
    hp: HP | None
    value: float | None
    seed: int


@dataclass(frozen=True, eq=False)
class StudyTable:
    """All cells of a study with their results. Make it with `StudyTable.join` or `StudyDirectory.table`.

    Args:
        study: the study.
        rows: one row per cell, in the order of `expand`.
        read_records: returns the training records of a run, given its identity.
    """

    study: StudySpec
    rows: tuple[CellResult, ...]
    read_records: Callable[[str], Sequence[StepMetrics]] = lambda _: ()

    @classmethod
    def join(
        cls,
        study: StudySpec,
        results: Iterable[Result],
        read_records: Callable[[str], Sequence[StepMetrics]] = lambda _: (),
    ) -> StudyTable:
        """Join the cells of a study with results; a cell whose run has no result is missing."""
        by_run = {result.run: result for result in results}
        rows = [CellResult(cell, by_run.get(cell.run) or Result(cell.run, "", "missing")) for cell in expand(study)]
        return cls(study, tuple(rows), read_records)

    def at_complete_looks(self) -> StudyTable:
        """Return the table with every curve of an adaptive sweep at its last choice whose runs have all ended.

        A sweep whose time ends in the middle of a look has trained some of the cells that it chose last. They belong to
        no look yet, and must not take data from curves that are complete.
        """
        chosen = [each if each.before is None or self._has_ended(each) else each.before for each in self._chosen]
        if chosen == self._chosen:
            return self
        return StudyTable.join(self.study.replace(chosen=tuple(chosen)), self.results, self.read_records)

    @property
    def _chosen(self) -> list[ChoiceSpec]:
        return list(self.study.chosen or ())

    def _has_ended(self, choice: ChoiceSpec) -> bool:
        """Return whether all runs of a choice have ended, the zero-shot runs of its seeds among them."""
        zero_shot = [row for row in self.where(axis=choice.axis, hp=None) if row.cell.seed in choice.seeds]
        rows = (*zero_shot, *self.where(axis=choice.axis, hp=choice.hp))
        return all(row.result.status in ENDED for row in rows)

    def where(self, **labels: Unpack[Labels]) -> tuple[CellResult, ...]:
        """Return the rows whose cells have all of the given labels; `hp=None` selects zero-shot cells."""
        wanted = labels.items()
        return tuple(row for row in self.rows if all(getattr(row.cell, name) == value for name, value in wanted))

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of all axes."""
        return axis_names(self.study)

    @property
    def own(self) -> Arm:
        """The study's own arm."""
        return own_arm(self.study)

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """All arms, the study's own first."""
        return arms(self.study)

    def arm(self, name: str) -> Arm:
        """Return an arm by its name."""
        return {arm.name: arm for arm in self.arms}[name]

    def axes_of(self, arm: Arm) -> tuple[str, ...]:
        """Return the axes that an arm is trained on."""
        return self.axes if arm == self.own else self.study.arms[arm.name].axes

    def sizes(self, axis: str) -> tuple[Size, ...]:
        """Return the sizes of an axis by increasing scale, the base among them."""
        return self._sizes[axis]

    def base(self, axis: str) -> Size:
        """Return the base as a size of an axis."""
        return next(size for size in self.sizes(axis) if size.is_base)

    @cached_property
    def _sizes(self) -> dict[str, tuple[Size, ...]]:
        return {axis: tuple(dict.fromkeys(row.cell.size for row in self.where(axis=axis))) for axis in self.axes}

    @cached_property
    def results(self) -> tuple[Result, ...]:
        """The results of all runs, each once."""
        return unique_results(self.rows)

    def zero_shot(self, axis: str, size: Size, arm: Arm) -> tuple[float, ...]:
        """Return the final losses of an arm at a size with the base's hyperparameters, one per seed of the study."""
        return tuple(row.result.loss for row in self.where(axis=axis, size=size, arm=arm, hp=None))

    def zero_shot_pairs(self, axis: str, size: Size, one: Arm, other: Arm) -> tuple[tuple[float, float], ...]:
        """Return the final losses of two arms at a size with the base's hyperparameters, for the seeds of both."""
        losses = [
            {row.cell.seed: row.result.loss for row in self.where(axis=axis, size=size, arm=arm, hp=None)}
            for arm in (one, other)
        ]
        return tuple((losses[0][seed], losses[1][seed]) for seed in losses[0] if seed in losses[1])

    def records(self, rows: Iterable[CellResult]) -> dict[int, Sequence[StepMetrics]]:
        """Return training records by seed, of the rows whose runs have finished or diverged."""
        found = {row.cell.seed: self.read_records(row.result.identity) for row in rows if row.result.status in DONE}
        return {seed: records for seed, records in found.items() if records}

    def zero_shot_records(self, axis: str, size: Size, arm: Arm) -> dict[int, Sequence[StepMetrics]]:
        """Return training records by seed of an arm at a size with the base's hyperparameters."""
        return self.records(self.where(axis=axis, size=size, arm=arm, hp=None))


def unique_results(rows: Iterable[CellResult]) -> tuple[Result, ...]:
    """Return the results of rows, each run once."""
    return tuple({row.cell.run: row.result for row in rows}.values())
