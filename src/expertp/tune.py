"""Constant multipliers of a base model by coordinate descent over seeds (paper, appendix D.1).

    all ones  ->  one coordinate at a time, up and down, further the way that helps  ->  the next coordinate

Coordinates are the global learning rate and init std, then lr and init of every family of parameters. A change is taken
when the loss falls significantly over the same seeds and training becomes no less stable. A change that makes training
more stable, at the candidate's learning rate or an octave above, is taken as well, if it surely costs next to no loss.
Two things are stability: that no seed diverges, and that experts are loaded evenly.

`descend` knows nothing of training: it asks `measure` for outcomes. All runs are cells of one study, so that whatever
is there is not trained again, and the same command after an interruption walks the same path.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from expertp.analysis.balance import load_balance
from expertp.analysis.curves import StudyTable
from expertp.analysis.paired import Change, paired
from expertp.config import build
from expertp.errors import InputError, RunError
from expertp.plan import named_constants
from expertp.spec import BaseHPs
from expertp.study import AxisSpec, ContrastSpec, GridSpec, StudySpec
from expertp.study_store import DONE, StudyDirectory, open_study, read_study
from expertp.sweep import Executor, run_study

GLOBAL = ("lr", "init_std")
FAMILIES = ("mlp_down", "mlp_up", "router", "attn_v", "attn_qk", "attn_o", "embedding")
COORDINATES = (*GLOBAL, *(f"{family}_{kind}" for family in FAMILIES for kind in ("lr", "init")), "norm_lr")
# How far one step goes: the global values by an octave, constants by the paper's factor.
GLOBAL_STEP, CONSTANT_STEP = 2.0, 4.0
# How far a coordinate may move from its start.
FURTHEST = 4.0**4
# An octave above the learning rate training must not diverge.
ABOVE = 2.0
# Load deviations halve or double before they count: a good share of what there is at the end is noise of the batch.
OCTAVE = 1.0
# Loss that stability may cost, in nats.
NEXT_TO_NOTHING = 0.01
NO_CHANGE = Change(0.0, 0.0, 0)
Verdict = Literal["taken", "left", "unstable"]


@dataclass(frozen=True)
class Outcome:
    """How a model trains: one number per seed.

    Args:
        losses: at the end; inf where it diverged.
        loads: max |Load - kappa| in the last quarter; nan where it diverged, or has no loads to speak of.
    """

    losses: tuple[float, ...]
    loads: tuple[float, ...]

    @property
    def diverged(self) -> int:
        """How many seeds diverge."""
        return self.losses.count(math.inf)

    @property
    def load(self) -> float:
        """Mean load deviation of the seeds that have one."""
        known = [load for load in self.loads if not math.isnan(load)]
        return statistics.fmean(known) if known else math.nan

    def stability(self, best: Outcome) -> int:
        """Return whether it is more (1), as (0) or less (-1) stable than the best so far."""
        if self.diverged != best.diverged:
            return 1 if self.diverged < best.diverged else -1
        octaves = paired(*([math.log2(load) if load > 0 else math.nan for load in each.loads] for each in (self, best)))
        if abs(octaves.mean) >= OCTAVE and (octaves.is_lower or octaves.is_higher):
            return 1 if octaves.is_lower else -1
        return 0


Measure = Callable[[Sequence[BaseHPs]], list[Outcome]]


@dataclass(frozen=True)
class Trial:
    """One candidate beside the best so far.

    Args:
        coordinate: what was changed; empty for the start.
        value: to what.
        factor: by what it was multiplied.
        hps: the candidate.
        outcome: at its learning rate.
        above: an octave above; None where that did not matter.
        change: its loss minus that of the best so far, over the same seeds; unknown where one of them diverges.
        verdict: whether it became the best, was left since it is no better, or refused since it is less stable.
        why: in a few words.
    """

    coordinate: str
    value: float
    factor: float
    hps: BaseHPs
    outcome: Outcome
    above: Outcome | None = None
    change: Change = NO_CHANGE
    verdict: Verdict = "left"
    why: str = ""

    @property
    def is_taken(self) -> bool:
        """Whether it became the best."""
        return self.verdict == "taken"

    @property
    def loss(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(self.outcome.losses)


def moved(hps: BaseHPs, coordinate: str, factor: float) -> BaseHPs:
    """Return hyperparameters with one coordinate multiplied.

    >>> moved(BaseHPs(lr=0.01), "router_lr", 0.25).constants
    {'router_lr': 0.25}
    """
    if coordinate in GLOBAL:
        return hps.replace(**{coordinate: getattr(hps, coordinate) * factor})
    constants = dict(named_constants(hps.constants))
    constants[coordinate] = constants.get(coordinate, 1.0) * factor
    return hps.replace(constants={name: value for name, value in constants.items() if value != 1.0})


def value_of(hps: BaseHPs, coordinate: str) -> float:
    """Return a coordinate of hyperparameters."""
    if coordinate in GLOBAL:
        return float(getattr(hps, coordinate))
    return named_constants(hps.constants).get(coordinate, 1.0)


def descend(
    start: BaseHPs, measure: Measure, passes: int = 1, coordinates: Sequence[str] = COORDINATES
) -> Iterator[Trial]:
    """Yield every candidate in the order in which it was tried; the last one that is taken is the result.

    Args:
        start: where to begin, usually with all constants one.
        measure: returns the outcome of each candidate, over the same seeds.
        passes: how often all coordinates are gone through; a pass that takes nothing is the last.
        coordinates: what may change.
    """
    outcome, above = measure([start, _above(start)])
    best = Trial("", math.nan, 1.0, start, outcome, above, verdict="taken", why="start")
    yield best
    for _ in range(passes):
        before = best
        for coordinate in coordinates:
            step = GLOBAL_STEP if coordinate in GLOBAL else CONSTANT_STEP
            begun = value_of(start, coordinate)
            ways: Sequence[float] = (1 / step, step)
            while near := [factor for factor in ways if _is_near(value_of(best.hps, coordinate) * factor / begun)]:
                tried = list(_judged(best, coordinate, near, measure))
                yield from tried
                taken = [each for each in tried if each.is_taken]
                if not taken:
                    break
                (best,) = taken
                ways = (best.factor,)
        if best is before:
            return


def _is_near(ratio: float) -> bool:
    """Answer whether a value is still near enough to where it began to be tried."""
    return 1 / FURTHEST <= ratio <= FURTHEST


def _judged(best: Trial, coordinate: str, factors: Sequence[float], measure: Measure) -> Iterator[Trial]:
    """Yield candidates with their verdicts; at most one, the best of them, is taken."""
    candidates = [moved(best.hps, coordinate, factor) for factor in factors]
    trials = [
        Trial(
            coordinate=coordinate,
            value=value_of(hps, coordinate),
            factor=factor,
            hps=hps,
            outcome=outcome,
            change=paired(outcome.losses, best.outcome.losses),
        )
        for factor, hps, outcome in zip(factors, candidates, measure(candidates), strict=True)
    ]
    hopeful = [each for each in trials if _could_be_taken(each, best)]
    if hopeful:
        above = measure([_above(each.hps) for each in hopeful])
        known = {each.factor: found for each, found in zip(hopeful, above, strict=True)}
        trials = [replace(each, above=known.get(each.factor)) for each in trials]
    judged = [_with_verdict(each, best) for each in trials]
    fit = [each for each in judged if each.is_taken]
    chosen = min(fit, key=lambda each: (each.outcome.diverged, each.loss), default=None)
    for each in judged:
        is_second = each.is_taken and each is not chosen
        yield replace(each, verdict="left", why="the other way is better") if is_second else each


def _could_be_taken(trial: Trial, best: Trial) -> bool:
    """Return whether it is worth knowing how a candidate trains an octave above its learning rate."""
    if trial.outcome.stability(best.outcome) < 0:
        return False
    is_cured = trial.outcome.diverged < best.outcome.diverged
    # That chance could explain a cost is not enough: paid at every coordinate, it would add up.
    is_free = trial.change.is_at_most(NEXT_TO_NOTHING) is True
    return trial.change.is_lower or is_free or is_cured


def _with_verdict(trial: Trial, best: Trial) -> Trial:
    """Return a candidate with whether it may be taken, and why or why not."""
    if trial.outcome.stability(best.outcome) < 0:
        return replace(trial, verdict="unstable", why=_instability(trial.outcome))
    if trial.above is not None and best.above is not None:
        if trial.above.diverged > best.above.diverged:
            return replace(trial, verdict="unstable", why=f"{_instability(trial.above)} at twice its lr")
        if trial.change.is_lower:
            return replace(trial, verdict="taken", why="lower loss")
        if trial.outcome.stability(best.outcome) > 0 or trial.above.stability(best.above) > 0:
            return replace(trial, verdict="taken", why="more stable")
    return replace(trial, why="higher loss" if trial.change.is_higher else "no significant change")


def _instability(outcome: Outcome) -> str:
    if outcome.diverged:
        return f"diverges on {outcome.diverged} of {len(outcome.losses)} seeds"
    return f"uneven loads (max |Load - kappa| {outcome.load:.2f})"


def _above(hps: BaseHPs) -> BaseHPs:
    return moved(hps, "lr", ABOVE)


def as_text(hps: BaseHPs) -> str:
    """Name hyperparameters by all that the descent may change.

    >>> as_text(BaseHPs(lr=2**-7, init_std=1/16, constants={"router_lr": 1/4}))
    'lr=1/128 init_std=1/16 router_lr=1/4'
    """
    values = {name: value_of(hps, name) for name in GLOBAL} | dict(named_constants(hps.constants))
    return " ".join(f"{name}={ratio(value)}" for name, value in values.items())


def ratio(value: float) -> str:
    """Write a number as the paper does.

    >>> ratio(1 / 16), ratio(4.0), ratio(0.3)
    ('1/16', '4', '0.3')
    """
    inverse = 1 / value
    return f"1/{inverse:.0f}" if value < 1 and abs(inverse - round(inverse)) < 1e-9 else f"{value:g}"


@dataclass
class TrainedCandidates:
    """Trains candidates at the base of a study, as contrasts of one growing study.

    Args:
        study: base, data, horizon and seeds.
        path: the directory.
        executor: trains.
        should_stop: asked often.
        follow: given the study with its new cells, returns what is called often while they are trained.
    """

    study: StudySpec
    path: Path
    executor: Executor
    should_stop: Callable[[], bool] = lambda: False
    follow: Callable[[StudyDirectory], Callable[[], None]] = lambda _: lambda: None
    _known: dict[str, Outcome] = field(default_factory=dict)

    def measure(self, candidates: Sequence[BaseHPs]) -> list[Outcome]:
        """Return how candidates train, after training what is missing; raises `Interrupted` when told to stop."""
        names = [as_text(hps) for hps in candidates]
        if not self._known.keys() >= set(names):
            self._train(candidates)
        return [self._known[name] for name in names]

    def _train(self, candidates: Sequence[BaseHPs]) -> None:
        """Train candidates, and learn how they and all that an earlier descent has tried came out."""
        self.study = with_candidates(self._with_earlier(), candidates)
        directory = open_study(self.path, self.study)
        results = run_study(directory, self.executor, self.should_stop, self.follow(directory))
        if self.should_stop():
            raise Interrupted
        failed = [each for each in results if each.status not in DONE]
        if failed:
            raise RunError(f"{self.path}: {len(failed)} runs have failed ({failed[0].error}); see `expertp status`")
        table = StudyTable(directory.study, results)
        for name in (self.study.hps.rules, *self.study.contrasts):
            text = as_text(self.study.hps_of(name))
            if text not in self._known:
                self._known[text] = self._outcome(directory, table, name)

    def _outcome(self, directory: StudyDirectory, table: StudyTable, name: str) -> Outcome:
        runs = [table.result(run) for run in self.study.centre(self.study.base, name)]
        found = [directory.directory(result.identity) for result in runs if result]
        loads = [load_balance(1.0, {0: run.metrics()}) for run in found if run]
        late = tuple(load.late(self.study.train.steps) if load else math.nan for load in loads)
        return Outcome(table.zero_shot(next(iter(self.study.axes)), 1.0, name), late)

    def _with_earlier(self) -> StudySpec:
        """Return the study with all that an earlier descent in its directory has tried, if it began alike."""
        if not (self.path / "study.json").exists():
            return self.study
        before = read_study(self.path).study
        if before.hps != self.study.hps:
            return self.study
        return self.study.replace(contrasts={**before.contrasts, **self.study.contrasts})


class Interrupted(Exception):
    """The descent was told to stop; what has been trained is kept."""


def tuning_study(study: StudySpec) -> StudySpec:
    """Return the study whose cells a descent is made of: the base alone, constants one, nothing judged."""
    if len(study.seeds) < 3:
        raise InputError(f"seeds: {len(study.seeds)} cannot tell a change from chance; give 3 or more, better 5")
    log2_lr = math.log2(study.hps.lr)
    hps = study.hps.replace(constants="ones", lr=2.0**log2_lr)  # to the bit that of the grid, or it would be two cells
    return study.replace(
        name=f"{study.name}, constants",
        hps=hps,
        axes={"width": AxisSpec(sizes=(study.base.n_embd,), sweep=("log2_lr",))},
        joint={},
        grids=build(GridSpec, {"log2_lr": [log2_lr]}, "hps.lr:"),
        contrasts={},
        verdict=None,
        refinements=(),
        allow_kappa_change=False,
    )


def with_candidates(study: StudySpec, candidates: Sequence[BaseHPs]) -> StudySpec:
    """Return a study that has candidates as contrasts, each once."""
    added = {
        as_text(hps): ContrastSpec(
            axes=tuple(study.axes),
            hps={"lr": hps.lr, "init_std": hps.init_std, "constants": named_constants(hps.constants) or "ones"},
        )
        for hps in candidates
        if hps != study.hps
    }
    return study.replace(contrasts={**study.contrasts, **added})
