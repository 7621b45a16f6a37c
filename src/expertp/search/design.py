"""Which cells would decide an open verdict next, and a sweep that trains them until every verdict is decided.

Every curve begins with two seeds at five values around the zero-shot value (or as many as the grid has there), at the
base and at the largest size; a study that was swept in full is taken up with all its cells. After each look, an open
verdict gets what decides it at the lowest cost: a value half-way to one at which runs have diverged, where fewer than
three values can be fitted; a value beyond the end at which the minimum may lie; or those values and seeds that narrow
the interval of the slope at the zero-shot value most per run, until the verdict is expected to be decided. Looking
often is corrected for by alpha spending (`expertp.analysis.judging.tail_of_look`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from expertp.analysis.curve_fit import FEWEST_VALUES, WINDOW, CurveFit, finite_values, slope_sd
from expertp.analysis.curves import Curve, curves
from expertp.analysis.judging import tail_of_look
from expertp.analysis.transfer import judge
from expertp.analysis.verdict import StudyVerdict, Verdict
from expertp.spec import Model, RunSpec
from expertp.study.cells import (
    axis_names,
    curve_cells,
    expand,
    grid,
    looks_of,
    own_arm,
    swept_on,
    zero_shot_value,
)
from expertp.study.cost import cost_of_runs
from expertp.study.forecast import with_all_models
from expertp.study.progress import seconds_by_model
from expertp.study.spec import HP, ChoiceSpec, StudySpec
from expertp.study.store import StudyDirectory, open_study, read_study
from expertp.study.table import ENDED, StudyTable, unique_results
from expertp.util.statistics import normal_quantile

if TYPE_CHECKING:
    from expertp.study.sweep import Executor

# Octaves from the zero-shot value of the first values, and the number of the first seeds.
FIRST_OCTAVES = (-1.0, -0.5, 0.0, 0.5, 1.0)
FIRST_SEEDS = 2
# Smallest spacing of values, octaves; a finer one would resolve noise rather than the curve.
FINEST = 0.5
BEYOND = "the minimum may lie beyond the values"
# One look adds at most as many runs as twice those before, and a curve has at most so many seeds.
MOST_GROWTH, MOST_SEEDS = 3.0, 24


@dataclass(frozen=True)
class Proposal:
    """Cells that would decide a verdict.

    Args:
        choice: values and seeds of the curve with the new ones.
        is_expected_to_decide: whether they are expected to be enough.
        runs: number of runs that this adds.
        flops: their FLOPs.
        seconds: their training time on one worker; nan before any run has finished.
    """

    choice: ChoiceSpec
    is_expected_to_decide: bool
    runs: int
    flops: float
    seconds: float


def first_choice(study: StudySpec) -> StudySpec:
    """Return a study with the cells that an adaptive sweep begins with."""
    return study.replace(
        chosen=tuple(
            ChoiceSpec(
                axis=axis,
                hp=hp,
                values=_first_values(study, axis, hp),
                seeds=study.seeds[:FIRST_SEEDS],
                looks=max(1, looks_of(study, axis, hp)),
                why="first cells",
            )
            for axis in axis_names(study)
            for hp in swept_on(study, axis)
        )
    )


def whole_choice(study: StudySpec) -> StudySpec:
    """Return a study that was swept in full as an adaptive sweep takes it up: with all its cells, looked at once."""
    chosen = []
    for axis in axis_names(study):
        for hp in swept_on(study, axis):
            (values, seeds), looks = curve_cells(study, axis, hp), max(1, looks_of(study, axis, hp))
            why = "all cells of the study file"
            chosen.append(
                ChoiceSpec(axis=axis, hp=hp, values=values, seeds=seeds, all_sizes=True, looks=looks, why=why)
            )
    return study.replace(chosen=tuple(chosen))


def _first_values(study: StudySpec, axis: str, hp: HP) -> tuple[float, ...]:
    """Return the values of the grid nearest to the first octaves, and the zero-shot value."""
    zero, values = zero_shot_value(own_arm(study), hp), grid(study, hp, axis)
    near = {min(values, key=lambda value: abs(value - zero - octave)) for octave in FIRST_OCTAVES}
    inner = [value for value in near if abs(value - zero) <= FIRST_OCTAVES[-1] + 1e-9]
    # Ends that the grid does not have are made up for by its next values.
    around = inner if len(inner) > 2 else sorted(values, key=lambda value: abs(value - zero))[:3]
    is_there = any(math.isclose(value, zero, abs_tol=1e-9) for value in around)
    return tuple(sorted({*around, *(() if is_there else (zero,))}))


def sweep_until_decided(
    directory: StudyDirectory,
    executor: Executor,
    budget_seconds: float = math.inf,
    on_proposal: Callable[[Proposal, bool], None] = lambda _proposal, _is_chosen: None,
    should_stop: Callable[[], bool] = lambda: False,
    follow: Callable[[StudyDirectory], Callable[[], None]] = lambda _: lambda: None,
) -> StudyDirectory:
    """Train cells until every verdict is decided, the budget is spent or nothing more would help.

    Args:
        directory: a study with chosen cells.
        executor: trains the runs.
        budget_seconds: wall-clock time; runs that are not finished by then are saved.
        on_proposal: called with each proposal and whether it fits into the budget.
        should_stop: called often; True stops the training.
        follow: given the study with its new cells, returns a function that is called often while they are trained.

    Returns:
        The study with the cells that were chosen.
    """
    from expertp.study.sweep import sweep  # imports torch, which a proposal does not need

    ends_at = time.monotonic() + budget_seconds

    def is_over() -> bool:
        return should_stop() or time.monotonic() >= ends_at

    while True:
        sweep(directory, executor, is_over, follow(directory))
        directory = directory.settled()
        if is_over() or not directory.has_ended():
            return directory
        stored = read_study(directory.path)
        if stored.study.chosen != directory.study.chosen:  # another sweep has gone ahead
            directory = stored
            continue
        table = directory.table()
        proposals = propose(table, judge(table))
        left = (ends_at - time.monotonic()) * executor.workers
        chosen = affordable(proposals, left, lambda each: each.seconds)
        for each in proposals:
            on_proposal(each, each in chosen)
        if not chosen:
            return directory
        grown = with_choices(directory.study, chosen)
        directory = open_study(directory.path, grown, directory.runs_folder, executor.trains_here)


def with_choices(study: StudySpec, proposals: Sequence[Proposal]) -> StudySpec:
    """Return a study with the cells of proposals."""
    new = {(each.choice.axis, each.choice.hp): each.choice for each in proposals}
    return study.replace(chosen=tuple(new.get((each.axis, each.hp), each) for each in study.chosen or ()))


def propose(table: StudyTable, found: StudyVerdict) -> list[Proposal]:
    """Return the cells that would decide each open verdict: those that are expected to be enough first, then by cost.

    Args:
        table: the study's results.
        found: its verdicts.
    """
    if table.study.chosen is None:  # judged as an adaptive sweep will, which takes this study up
        table = StudyTable.join(whole_choice(table.study), table.results, table.read_records)
        found = judge(table)
    study = table.study
    there = {cell.run for cell in expand(study)}
    seconds = seconds_by_model(table.results)
    made: list[Proposal] = []
    for verdict in found.axes:
        choice = next(each for each in study.chosen or () if (each.axis, each.hp) == (verdict.axis, verdict.hp))
        found_next = next_choice(study, verdict, choice, curves(table, verdict.axis, verdict.arm, verdict.hp))
        if found_next is None:
            continue
        following, is_enough = found_next
        grown = study.replace(chosen=tuple(following if each is choice else each for each in study.chosen or ()))
        added = list(dict.fromkeys(cell.run for cell in expand(grown) if cell.run not in there))
        made += _proposals(following, is_enough, added, seconds)
    return sorted(made, key=lambda each: (not each.is_expected_to_decide, each.flops))


def next_cells(table: StudyTable, found: StudyVerdict) -> list[Proposal]:
    """Return the cells that an adaptive sweep would train next: chosen ones that have not ended, else proposed ones.

    Args:
        table: the study's results.
        found: its verdicts.
    """
    if not found.missing:
        return propose(table, found)
    made: list[Proposal] = []
    seconds, counted = seconds_by_model(table.results), set[RunSpec]()
    for choice in table.study.chosen or ():
        rows = (*table.where(axis=choice.axis, hp=None), *table.where(axis=choice.axis, hp=choice.hp))
        left = [each.run for each in unique_results(rows) if each.status not in ENDED and each.run not in counted]
        counted.update(left)
        made += _proposals(choice, True, left, seconds)
    return made


def _proposals(
    choice: ChoiceSpec, is_enough: bool, runs: Sequence[RunSpec], seconds: Mapping[Model, float]
) -> list[Proposal]:
    """Return a proposal with its cost, given the seconds per run of some models; none without runs."""
    known = with_all_models(seconds, [run.model for run in runs])
    needed = sum(known[run.model] for run in runs) if known else math.nan
    return [Proposal(choice, is_enough, len(runs), cost_of_runs(runs).flops, needed)] if runs else []


def next_choice(
    study: StudySpec, verdict: Verdict, choice: ChoiceSpec, found: Sequence[Curve]
) -> tuple[ChoiceSpec, bool] | None:
    """Return the cells of a curve with those that would decide its verdict, and whether they are expected to be enough.

    None if the verdict is decided, or if no cells would decide it.

    Args:
        study: the study.
        verdict: the verdict.
        choice: the cells of the curve.
        found: the curve at every size.
    """
    if verdict.conclusion != "UNDECIDED" or any(math.inf in each.zero_shot_losses for each in found):
        return None  # more seeds make no zero-shot run stable
    chosen = (
        _with_few_values(study, verdict, choice, found)
        if verdict.worst is None
        else _with_costs(study, verdict, choice)
    )
    if chosen is None or chosen[0].runs == len(choice.values) * len(choice.seeds):
        return None
    design, is_enough, why = chosen
    before = choice.replace(before=None)
    return choice.replace(
        values=design.values, seeds=design.seeds, looks=choice.looks + 1, why=why, before=before
    ), is_enough


def _with_few_values(
    study: StudySpec, verdict: Verdict, choice: ChoiceSpec, found: Sequence[Curve]
) -> tuple[_Design, bool, str] | None:
    """Add a value where too few have finished for a fit: half-way to one at which runs have diverged or were stopped,
    else half-way between two others, else beyond the lower end; the nearest to zero-shot first.
    """
    finite = set.intersection(*({*finite_values(each)} for each in found)) if found else set[float]()
    if not finite or len(finite) >= FEWEST_VALUES:
        return None
    pairs = [(a, b) for a, b in zip(choice.values, choice.values[1:], strict=False) if b - a >= 2 * FINEST]
    halves = {(a + b) / 2: len({a, b} & finite) for a, b in pairs if {a, b} & finite}
    value = min(halves, key=lambda half: (halves[half], abs(half - found[0].centre)), default=None)
    if value is None and choice.values[0] in finite:
        below = [each for each in grid(study, choice.hp, choice.axis) if each < choice.values[0]]
        value = max(below, default=choice.values[0] - 1)
    if value is None:
        return None
    return _Design(tuple(sorted((*choice.values, value))), choice.seeds), True, verdict.reason


def _with_costs(study: StudySpec, verdict: Verdict, choice: ChoiceSpec) -> tuple[_Design, bool, str] | None:
    """Add the cells that would decide a verdict whose costs are known; None if no cells would."""
    worst = verdict.worst
    if worst is None or not verdict.noise.is_known:
        return None
    fit = verdict.fits.get(worst.size)
    if fit is None or worst.is_explained_by_base:  # the base has to be tuned first
        return None
    value = _beyond(study, choice, fit) if worst.cost.high == math.inf else None
    if value is not None:
        return _Design(tuple(sorted((*choice.values, value))), choice.seeds), True, BEYOND
    return *_improved(study, verdict, choice), verdict.reason


@dataclass(frozen=True)
class _Design:
    """Values and seeds of a curve."""

    values: tuple[float, ...]
    seeds: tuple[int, ...]

    @property
    def runs(self) -> int:
        """Number of runs at one size."""
        return len(self.values) * len(self.seeds)


def _beyond(study: StudySpec, choice: ChoiceSpec, fit: CurveFit) -> float | None:
    """Return a value beyond the end at which the minimum may lie: of the grid, an octave away, or half-way to a
    value at which runs have diverged or were stopped; None where the minimum lies an octave from that end, so that
    noise is the reason.
    """
    side = -1 if float((fit.side.draws < 0).mean()) > float((fit.side.draws > 0).mean()) else 1
    end = fit.values[0] if side < 0 else fit.values[-1]
    if fit.edge is None and abs(end - fit.optimum.value) >= 1:
        return None
    further = sorted(
        (value for value in (*choice.values, *grid(study, choice.hp, choice.axis)) if side * (value - end) > 0),
        key=lambda value: abs(value - end),
    )
    if not further:
        return end + side
    if further[0] not in choice.values:
        return further[0]
    is_close = abs(further[0] - end) < 2 * FINEST
    return None if is_close else (further[0] + end) / 2


def _improved(study: StudySpec, verdict: Verdict, choice: ChoiceSpec) -> tuple[_Design, bool]:
    """Add the values and seeds that narrow the slope most per run until the verdict is expected to be decided.

    Returns:
        The design, and whether it is expected to be enough.
    """
    worst = verdict.worst
    assert worst is not None
    fit, zero = verdict.fits[worst.size], verdict.fits[worst.size].curve.centre

    def slope(design: _Design) -> float:
        return slope_sd(design.values, len(design.seeds), zero, verdict.noise, fit.curvature)

    start = design = _Design(tuple(choice.values), tuple(choice.seeds))
    wanted = slope(start) * _shrink(verdict, choice)
    while slope(design) > wanted and design.runs < MOST_GROWTH * start.runs:
        options = [*_more_values(study, choice, design, zero), *_more_seeds(study, design)]
        if not options:
            break
        design = max(options, key=lambda each: math.log(slope(design) / slope(each)) / (each.runs - design.runs))
    return design, slope(design) <= wanted


def _shrink(verdict: Verdict, choice: ChoiceSpec) -> float:
    """Return the factor by which the s.d. of the slope must shrink for a verdict, at the level of the next look.

    The square root of the cost is proportional to the slope, and has about a normal distribution.
    """
    worst = verdict.worst
    assert worst is not None
    wider = normal_quantile(1 - tail_of_look(choice.looks + 1)) / normal_quantile(1 - verdict.tail)
    if worst.cost.high == math.inf:
        return 0.5
    if worst.cost.low > worst.tolerance:  # only the cost of the base is in the way of FAILS
        away, half = worst.growth.value - worst.tolerance, worst.growth.value - worst.growth.low
    else:
        root = math.sqrt(max(worst.cost.value, 0.0))
        away = abs(math.sqrt(worst.tolerance) - root)
        half = max(math.sqrt(worst.cost.high) - root, root - math.sqrt(max(worst.cost.low, 0.0)))
    return away / max(half * wider, 1e-12)


def _more_values(study: StudySpec, choice: ChoiceSpec, design: _Design, zero: float) -> list[_Design]:
    """Return designs with one more value: of the grid, or half-way between two values."""
    near = [value for value in grid(study, choice.hp, choice.axis) if abs(value - zero) <= WINDOW]
    halves = [(a + b) / 2 for a, b in zip(design.values, design.values[1:], strict=False) if b - a >= 2 * FINEST]
    return [
        _Design(tuple(sorted((*design.values, value))), design.seeds)
        for value in dict.fromkeys((*near, *halves))
        if all(abs(value - each) >= FINEST - 1e-9 for each in design.values)
    ]


def _more_seeds(study: StudySpec, design: _Design) -> list[_Design]:
    """Return the design with one more seed: of the study file, or a new one."""
    free = [seed for seed in study.seeds if seed not in design.seeds]
    if not free and len(design.seeds) < MOST_SEEDS:
        free = [max((*study.seeds, *design.seeds)) + 1]
    return [_Design(design.values, (*design.seeds, free[0]))] if free else []


def affordable(proposals: Sequence[Proposal], budget: float, cost: Callable[[Proposal], float]) -> list[Proposal]:
    """Return the proposals that fit into a budget, taken in their order; an unknown cost counts as 0.

    Proposals that are not expected to decide anything are only taken where no other is.
    """
    chosen: list[Proposal] = []
    for each in proposals:
        if not each.is_expected_to_decide and any(other.is_expected_to_decide for other in chosen):
            break
        needed = 0.0 if math.isnan(cost(each)) else cost(each)
        if needed <= budget:
            chosen.append(each)
            budget -= needed
    return chosen
