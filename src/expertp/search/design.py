"""Which cells would decide an open verdict, and training them within a budget of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from expertp.analysis.transfer import StudyVerdict, Verdict, judge
from expertp.study.forecast import with_all_models
from expertp.study.progress import seconds_by_model
from expertp.study.spec import RefinementSpec
from expertp.study.store import StudyDirectory, open_study
from expertp.study.sweep import Executor, sweep
from expertp.study.table import StudyTable


@dataclass(frozen=True)
class Proposal:
    """Cells that would decide a verdict.

    Args:
        refinement: the values and seeds that are added to the study.
        runs: number of runs that this adds.
        seconds: their training time on one worker, from finished runs of these models.
    """

    refinement: RefinementSpec
    runs: int
    seconds: float


def refine(
    directory: StudyDirectory,
    executor: Executor,
    budget_seconds: float,
    on_proposal: Callable[[Proposal, bool], None] = lambda _proposal, _is_chosen: None,
    should_stop: Callable[[], bool] = lambda: False,
    follow: Callable[[StudyDirectory], Callable[[], None]] = lambda _: lambda: None,
) -> StudyDirectory:
    """Add and train cells until every verdict is decided, the budget is spent or nothing more would help.

    Args:
        directory: a study whose runs have ended.
        executor: trains the runs.
        budget_seconds: wall-clock time; runs that are not finished by then are saved.
        on_proposal: called with each proposal and whether it fits into the budget.
        should_stop: called often; True stops the training.
        follow: given the study with its new cells, returns a function that is called often while they are trained.

    Returns:
        The study with the added cells.
    """
    ends_at = time.monotonic() + budget_seconds

    def is_over() -> bool:
        return should_stop() or time.monotonic() >= ends_at

    while not is_over():
        proposals = propose(directory, directory.table())
        chosen = _affordable(proposals, (ends_at - time.monotonic()) * executor.workers)
        for each in proposals:
            on_proposal(each, each in chosen)
        if not chosen:
            return directory
        added = tuple(each.refinement for each in chosen)
        study = directory.study.replace(refinements=(*directory.study.refinements, *added))
        directory = open_study(directory.path, study, directory.runs_folder)
        sweep(directory, executor, is_over, follow(directory))
    return directory


def propose(directory: StudyDirectory, table: StudyTable, found: StudyVerdict | None = None) -> list[Proposal]:
    """Return the cells that would decide each open verdict, cheapest first; `found` are the verdicts, where known."""
    study, seconds = directory.study, seconds_by_model(table.results)
    if not seconds:
        return []  # without a finished run, no cost is known
    made = []
    for verdict in (found or judge(table)).axes:
        refinement = _refinement(verdict)
        if refinement is None or refinement in study.refinements:
            continue
        grown = replace(directory, study=study.replace(refinements=(*study.refinements, refinement)))
        added = [run for identity, run in grown.runs.items() if identity not in directory.runs]
        known = with_all_models(seconds, [run.model for run in added])
        if added:
            made.append(Proposal(refinement, len(added), sum(known[run.model] for run in added)))
    return sorted(made, key=lambda each: each.seconds)


def _refinement(verdict: Verdict) -> RefinementSpec | None:
    """Return the first remedy of a verdict as a refinement; missing runs are left to the sweep itself."""
    remedy = next((each for each in verdict.remedies if each.kind != "runs"), None)
    if remedy is None:
        return None
    return RefinementSpec(
        axis=verdict.axis, hp=verdict.hp, values=remedy.values or None, seeds=remedy.seeds, why=verdict.reason
    )


def _affordable(proposals: Sequence[Proposal], seconds: float) -> list[Proposal]:
    """Return the proposals that fit into a time, taken in their order."""
    chosen = []
    for each in proposals:
        if each.seconds <= seconds:
            chosen.append(each)
            seconds -= each.seconds
    return chosen
