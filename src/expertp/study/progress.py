"""Progress of a study, from any process: runs that have ended, runs that are being trained, time left."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from expertp.spec import Model
from expertp.study.cells import Arm, own_arm
from expertp.study.forecast import with_all_models
from expertp.study.store import StudyDirectory
from expertp.study.table import ENDED, SETTLED, CellResult, Result, unique_results
from expertp.training.tail import RecordsTail
from expertp.util.leases import Holder

STATUSES = ("finished", "diverged", "stopped", "failed", "damaged", "running", "unfinished", "missing")


@dataclass(frozen=True)
class ModelProgress:
    """The runs of one model in one arm.

    Args:
        arm: the arm.
        model: the model.
        total: number of runs.
        counts: number of runs by the status with which they have ended.
        best_log2_lr: learning rate with the lowest median loss, among those whose seeds have all finished.
        loss: that median.
    """

    arm: Arm
    model: Model
    total: int
    counts: Mapping[str, int]
    best_log2_lr: float | None
    loss: float | None

    @property
    def ended(self) -> int:
        """Number of runs that have ended."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class ActiveRun:
    """A run that a worker is training, and the worker's machine and process; `tail` has its records."""

    identity: str
    holder: Holder
    step: int
    steps: int
    tail: RecordsTail = field(compare=False)


@dataclass(frozen=True)
class StudyProgress:
    """The progress of a study.

    Args:
        counts: number of runs by status; `running` are those that live workers are training.
        models: progress by model and arm, in the study's order.
        running: what live workers are training.
        failed: results of the runs that have failed.
        damaged: results of the runs whose files are damaged.
        share_done: share of the whole training time that is done, as far as it is known.
        seconds_left: time left on one worker; None until a run has ended or was timed.
    """

    counts: Mapping[str, int]
    models: tuple[ModelProgress, ...]
    running: tuple[ActiveRun, ...]
    failed: tuple[Result, ...]
    damaged: tuple[Result, ...]
    share_done: float
    seconds_left: float | None

    @property
    def ended(self) -> int:
        """Number of runs that have ended."""
        return sum(self.counts[status] for status in ENDED)

    @property
    def total(self) -> int:
        """Number of all runs of the study."""
        return sum(self.counts.values())


@dataclass
class ProgressWatch:
    """Looks at a study repeatedly, reading the results of runs that have ended and the records of others only once.

    Args:
        directory: the study.
        timed: seconds per run by model, from a forecast; measured times of finished runs take precedence.
        results: the results of all runs at the last look, by identity.
    """

    directory: StudyDirectory
    timed: Mapping[Model, float] = field(default_factory=dict)
    results: Mapping[str, Result] = field(default_factory=dict)
    _ended: dict[str, Result] = field(default_factory=dict)
    _tails: dict[str, RecordsTail] = field(default_factory=dict)
    _known: tuple[object, tuple[ModelProgress, ...]] = (None, ())

    def look(self) -> StudyProgress:
        """Return the current progress."""
        directory = self.directory
        results = {identity: self._ended.get(identity) or directory.result(identity) for identity in directory.runs}
        self.results = results
        self._ended = {identity: result for identity, result in results.items() if result.status in SETTLED}
        held = {each: holder for each, holder in directory.running().items() if each not in self._ended}
        self._tails = {each: self._tails.get(each) or RecordsTail(directory.metrics_path(each)) for each in held}
        running = tuple(
            ActiveRun(each, holder, tail.step(), directory.runs[each].train.steps, tail)
            for (each, holder), tail in zip(held.items(), self._tails.values(), strict=True)
        )
        share, left = self._time(results, running)
        return StudyProgress(
            counts=_counts(results.values(), running),
            models=self._models(results.values()),
            running=running,
            failed=tuple(result for result in results.values() if result.status == "failed"),
            damaged=tuple(result for result in results.values() if result.status == "damaged"),
            share_done=share,
            seconds_left=left,
        )

    def _models(self, results: Iterable[Result]) -> tuple[ModelProgress, ...]:
        """Return the progress of all models, computed again only if another run has ended."""
        results = list(results)
        state = self.directory.study, tuple(result.status if result.status in ENDED else "" for result in results)
        if state != self._known[0]:
            self._known = state, self._new_models(results)
        return self._known[1]

    def _new_models(self, results: Iterable[Result]) -> tuple[ModelProgress, ...]:
        by_run = {result.run: result for result in results}
        groups = defaultdict[tuple[Arm, Model], list[CellResult]](list)
        for cell in self.directory.cells:
            groups[cell.arm, cell.size.model].append(CellResult(cell, by_run[cell.run]))
        made = [_model(arm, model, rows) for (arm, model), rows in groups.items()]
        own = own_arm(self.directory.study)
        return tuple(sorted(made, key=lambda each: (each.arm != own, each.model.flops_per_token())))

    def _time(self, results: Mapping[str, Result], running: Sequence[ActiveRun]) -> tuple[float, float | None]:
        """Return the share of the work that is done, and the seconds that are left on one worker."""
        models = list(dict.fromkeys(result.run.model for result in results.values()))
        seconds = with_all_models({**self.timed, **seconds_by_model(results.values())}, models)
        to_do = {identity for identity, result in results.items() if result.status not in ENDED}
        if not seconds:
            return 1 - len(to_do) / len(results), None if to_do else 0.0
        whole = sum(seconds[result.run.model] for result in results.values())
        active = {run.identity: run.step / run.steps for run in running}
        left = sum(seconds[results[each].run.model] * (1 - active.get(each, 0)) for each in to_do)
        return 1 - left / whole, left


def seconds_by_model(results: Iterable[Result]) -> dict[Model, float]:
    """Return the median training time of the finished runs of each model."""
    taken = defaultdict[Model, list[float]](list)
    for result in results:
        if result.status == "finished" and result.seconds:
            taken[result.run.model].append(result.seconds)
    return {model: statistics.median(seconds) for model, seconds in taken.items()}


def _counts(results: Iterable[Result], running: Sequence[ActiveRun]) -> dict[str, int]:
    active = {run.identity for run in running}
    found = Counter("running" if result.identity in active else result.status for result in results)
    return {status: found[status] for status in STATUSES}


def _model(arm: Arm, model: Model, rows: Sequence[CellResult]) -> ModelProgress:
    results = unique_results(rows)
    status = Counter[str](result.status for result in results)
    losses = defaultdict[float, list[float]](list)
    for result in unique_results(row for row in rows if row.cell.hp in (None, "log2_lr")):
        losses[math.log2(result.run.hps.lr)].append(result.loss)
    finished = [(statistics.median(found), lr) for lr, found in losses.items() if all(map(math.isfinite, found))]
    loss, best = min(finished, default=(None, None))
    return ModelProgress(arm, model, len(results), {name: status[name] for name in ENDED}, best, loss)
