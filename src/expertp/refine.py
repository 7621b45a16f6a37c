"""Settle what a study leaves open: add the cells that a verdict asks for, within a budget of time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from expertp.analysis.transfer import AxisVerdict, judge
from expertp.forecast import with_all_models
from expertp.standing import seconds_by_model
from expertp.study import RefinementSpec
from expertp.study_store import ENDED, Result, StudyDirectory, open_study
from expertp.sweep import Executor, run_study


@dataclass(frozen=True)
class Proposal:
    """Cells that would settle an axis.

    Args:
        cells: what is added to the study.
        runs: how many runs these are.
        seconds: of one worker, from what runs of these models have taken.
    """

    cells: RefinementSpec
    runs: int
    seconds: float


def refine(
    directory: StudyDirectory,
    executor: Executor,
    budget_seconds: float,
    say: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
    follow: Callable[[StudyDirectory], Callable[[], None]] = lambda _: lambda: None,
) -> StudyDirectory:
    """Add and train cells until every axis is settled, the budget is spent or nothing more would help.

    Args:
        directory: a study whose runs have ended.
        executor: trains.
        budget_seconds: of the clock on the wall; what is not finished by then is saved.
        say: told what is added and why, and what does not fit.
        should_stop: asked often.
        follow: given the study with its new cells, returns what is called often while they are trained.

    Returns:
        The study with what was added.
    """
    ends_at = time.monotonic() + budget_seconds

    def is_over() -> bool:
        return should_stop() or time.monotonic() >= ends_at

    while not is_over():
        left = ends_at - time.monotonic()
        proposals = propose(directory, directory.results())
        chosen = _affordable(proposals, left * executor.workers)
        for each in proposals:
            cost = f"{each.runs} runs, about {each.seconds / executor.workers / 60:.1f} min"
            say(f"{'adding' if each in chosen else 'over the budget'}: {_describe(each.cells)} ({cost})")
            say(f"  because {each.cells.why}")
        if not chosen:
            return directory
        cells = tuple(each.cells for each in chosen)
        study = directory.study.replace(refinements=(*directory.study.refinements, *cells))
        directory = open_study(directory.path, study, directory.cells)
        results = run_study(directory, executor, is_over, follow(directory))
        if left_over := sum(result.status not in ENDED for result in results):
            say(f"stopped with {left_over} of these runs not finished; the same command goes on with them")
    return directory


def propose(directory: StudyDirectory, results: Sequence[Result]) -> list[Proposal]:
    """Return what would settle each axis that is open, cheapest first."""
    study, seconds = directory.study, seconds_by_model(results)
    if not seconds:
        return []  # nothing has finished, so nothing can be said about a budget
    made = []
    for verdict in judge(study, results).axes:
        cells = _cells(verdict)
        if cells is None or cells in study.refinements:
            continue
        grown = replace(directory, study=study.replace(refinements=(*study.refinements, cells)))
        added = [run for identity, run in grown.runs.items() if identity not in directory.runs]
        known = with_all_models(seconds, [run.model for run in added])
        if added:
            made.append(Proposal(cells, len(added), sum(known[run.model] for run in added)))
    return sorted(made, key=lambda each: each.seconds)


def _cells(verdict: AxisVerdict) -> RefinementSpec | None:
    """Return the cells that a verdict asks for first; missing runs are a matter of the sweep itself."""
    for need in verdict.needs:
        if need.kind != "runs":
            return RefinementSpec(
                axis=verdict.axis,
                hp=verdict.hp,
                values=need.values or None,
                seeds=need.seeds,
                why=verdict.reason,
            )
    return None


def _describe(cells: RefinementSpec) -> str:
    added = [f"{cells.hp} {', '.join(f'{value:g}' for value in cells.values)}"] if cells.values else []
    added += [f"seeds {', '.join(map(str, cells.seeds))}"] if cells.seeds else []
    return f"{cells.axis}, {cells.hp}: {' and '.join(added)}"


def _affordable(proposals: Sequence[Proposal], seconds: float) -> list[Proposal]:
    """Take proposals in their order as long as they fit."""
    chosen = []
    for each in proposals:
        if each.seconds <= seconds:
            chosen.append(each)
            seconds -= each.seconds
    return chosen
