"""How a study stands, at any time and from any process: what is done, what is under way, what is left."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from expertp.forecast import with_all_models
from expertp.spec import ModelSpec
from expertp.study import StudySpec
from expertp.study_store import DONE, ENDED, Result, StudyDirectory

STATUSES = ("finished", "diverged", "failed", "running", "unfinished", "missing")


@dataclass(frozen=True)
class ModelStanding:
    """The runs of one model under one rule set.

    Args:
        rules: the rule set, or the name of a contrast.
        model: the model.
        total: runs that the study means.
        finished: runs that have ended well.
        diverged: runs that have ended by divergence.
        failed: runs that have failed twice.
        best_log2_lr: the learning rate with the lowest median loss over its seeds, of those whose seeds have all ended.
        loss: that median.
    """

    rules: str
    model: ModelSpec
    total: int
    finished: int
    diverged: int
    failed: int
    best_log2_lr: float | None
    loss: float | None


@dataclass(frozen=True)
class RunUnderWay:
    """A run that a worker of this machine is at."""

    identity: str
    pid: int
    step: int
    steps: int


@dataclass(frozen=True)
class Standing:
    """How a study stands.

    Args:
        counts: runs by status; `running` are those under way here.
        models: by model and rule set, in the study's order.
        running: what live workers are at.
        failed: runs that have failed, with their errors.
        share_done: of the whole time that the study takes, as far as is known.
        seconds_left: of one worker; None until a run has ended or been timed.
    """

    counts: Mapping[str, int]
    models: tuple[ModelStanding, ...]
    running: tuple[RunUnderWay, ...]
    failed: tuple[Result, ...]
    share_done: float
    seconds_left: float | None

    @property
    def ended(self) -> int:
        """Runs that nothing more will be done for."""
        return sum(self.counts[status] for status in ENDED)

    @property
    def total(self) -> int:
        """All runs of the study."""
        return sum(self.counts.values())


@dataclass
class Watch:
    """Looks at a study again and again, reading what has ended only once.

    Args:
        directory: the study.
        timed: seconds of a run by model, from a forecast; what runs really took counts more.
    """

    directory: StudyDirectory
    timed: Mapping[ModelSpec, float] = field(default_factory=dict)
    _ended: dict[str, Result] = field(default_factory=dict)

    def look(self) -> Standing:
        """Return how the study stands now."""
        directory = self.directory
        results = {identity: self._ended.get(identity) or directory.result(identity) for identity in directory.runs}
        self._ended = {identity: result for identity, result in results.items() if result.status in DONE}
        running = tuple(
            RunUnderWay(identity, pid, directory.step_of(identity), directory.runs[identity].train.steps)
            for pid, identity in directory.running().items()
            if identity not in self._ended
        )
        share, left = self._time(results, running)
        return Standing(
            counts=_counts(results.values(), running),
            models=_models(directory.study, list(results.values())),
            running=running,
            failed=tuple(result for result in results.values() if result.status == "failed"),
            share_done=share,
            seconds_left=left,
        )

    def _time(self, results: Mapping[str, Result], running: tuple[RunUnderWay, ...]) -> tuple[float, float | None]:
        """Return the share of the work that is done, and the seconds of one worker that are left."""
        models = list(dict.fromkeys(result.run.model for result in results.values()))
        seconds = with_all_models({**self.timed, **seconds_by_model(results.values())}, models)
        to_do = {identity for identity, result in results.items() if result.status not in ENDED}
        if not seconds:
            return 1 - len(to_do) / len(results), None if to_do else 0.0
        whole = sum(seconds[result.run.model] for result in results.values())
        under_way = {run.identity: run.step / run.steps for run in running}
        left = sum(seconds[results[each].run.model] * (1 - under_way.get(each, 0)) for each in to_do)
        return 1 - left / whole, left


def seconds_by_model(results: Iterable[Result]) -> dict[ModelSpec, float]:
    """Return what a run of each model has taken, the median of those that have finished."""
    taken = defaultdict[ModelSpec, list[float]](list)
    for result in results:
        if result.status == "finished" and result.seconds:
            taken[result.run.model].append(result.seconds)
    return {model: statistics.median(seconds) for model, seconds in taken.items()}


def _counts(results: Iterable[Result], running: tuple[RunUnderWay, ...]) -> dict[str, int]:
    under_way = {run.identity for run in running}
    found = Counter("running" if result.identity in under_way else result.status for result in results)
    return {status: found[status] for status in STATUSES}


def _models(study: StudySpec, results: Sequence[Result]) -> tuple[ModelStanding, ...]:
    groups = defaultdict[tuple[str, ModelSpec], list[Result]](list)
    for result in sorted(results, key=lambda result: result.run.model.flops_per_token()):
        groups[study.contrast_of(result.run.hps) or study.hps.rules, result.run.model].append(result)
    ordered = sorted(groups.items(), key=lambda group: group[0][0] != study.hps.rules)
    return tuple(_model(rules, model, study.hps_of(rules).init_std, group) for (rules, model), group in ordered)


def _model(rules: str, model: ModelSpec, init_std: float, results: Sequence[Result]) -> ModelStanding:
    status = Counter(result.status for result in results)
    best = _best_lr([result for result in results if result.run.hps.init_std == init_std])
    return ModelStanding(
        rules=rules,
        model=model,
        total=len(results),
        finished=status["finished"],
        diverged=status["diverged"],
        failed=status["failed"],
        best_log2_lr=math.log2(best[1]) if best else None,
        loss=best[0] if best else None,
    )


def _best_lr(results: Sequence[Result]) -> tuple[float, float] | None:
    """Return the lowest median loss and its learning rate; a cell counts when all its seeds have ended well."""
    cells = defaultdict[float, list[Result]](list)
    for result in results:
        cells[result.run.hps.lr].append(result)
    whole = [
        (statistics.median(losses), lr)
        for lr, cell in cells.items()
        if len(losses := [result.val_loss for result in cell if result.val_loss is not None]) == len(cell)
    ]
    return min(whole, default=None)
