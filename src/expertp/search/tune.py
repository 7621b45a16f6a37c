"""Constant multipliers of a base model by coordinate descent over seeds (paper, appendix D.1).

    all constants one  ->  one coordinate at a time, up and down, further in the better direction  ->  next coordinate

Coordinates are the global learning rate and init std, then lr and init of every family of parameters. A change is taken
if the loss falls significantly over the same seeds and training becomes no less stable. A change that makes training
more stable, at the candidate's learning rate or an octave above, is taken as well if its cost in loss is negligible.
Stability means that no seed diverges and that experts are evenly loaded.

`descend` does not train: `measure` returns outcomes. All runs are cells of one study, so that no run is trained twice,
and the same command after an interruption takes the same path.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from expertp.analysis.balance import load_balance
from expertp.analysis.paired import PairedDifference, paired
from expertp.config import build
from expertp.errors import InputError, RunError
from expertp.plan import named_constants
from expertp.spec import BaseHPs
from expertp.study.cells import Arm, arms
from expertp.study.spec import ArmSpec, AxisSpec, GridSpec, StudySpec
from expertp.study.store import StudyDirectory, open_study, read_study
from expertp.study.sweep import Executor, sweep
from expertp.study.table import DONE, StudyTable
from expertp.util.text import plural

GLOBAL = ("lr", "init_std")
FAMILIES = ("mlp_down", "mlp_up", "router", "attn_v", "attn_qk", "attn_o", "embedding")
COORDINATES = (*GLOBAL, *(f"{family}_{kind}" for family in FAMILIES for kind in ("lr", "init")), "norm_lr")
# Factor of one step: an octave for global values, the paper's factor for constants.
GLOBAL_STEP, CONSTANT_STEP = 2.0, 4.0
# Largest factor by which a coordinate may move from its start.
FURTHEST = 4.0**4
# Training must not diverge at this multiple of the learning rate.
ABOVE = 2.0
# Smallest change of load deviations that counts, in octaves: much of the deviation at the end is batch noise.
OCTAVE = 1.0
# Loss in nats that a gain in stability may cost.
NEXT_TO_NOTHING = 0.01
NO_CHANGE = PairedDifference(0.0, 0.0, 0)
Decision = Literal["taken", "left", "unstable"]


@dataclass(frozen=True)
class Outcome:
    """Results of a candidate, one number per seed.

    Args:
        losses: final losses; inf for a diverged run.
        loads: max |Load - kappa| in the last quarter; nan for a diverged run or a dense model.
    """

    losses: tuple[float, ...]
    loads: tuple[float, ...]

    @property
    def diverged(self) -> int:
        """Number of diverged seeds."""
        return self.losses.count(math.inf)

    @property
    def load(self) -> float:
        """Mean load deviation over the seeds that have one."""
        known = [load for load in self.loads if not math.isnan(load)]
        return statistics.fmean(known) if known else math.nan

    def stability(self, best: Outcome) -> int:
        """Return whether training is more (1), equally (0) or less (-1) stable than with the best candidate so far."""
        if self.diverged != best.diverged:
            return 1 if self.diverged < best.diverged else -1
        octaves = paired(*([math.log2(load) if load > 0 else math.nan for load in each.loads] for each in (self, best)))
        if abs(octaves.mean) >= OCTAVE and (octaves.is_lower or octaves.is_higher):
            return 1 if octaves.is_lower else -1
        return 0


Measure = Callable[[Sequence[BaseHPs]], list[Outcome]]


@dataclass(frozen=True)
class Trial:
    """One candidate, compared with the best so far.

    Args:
        coordinate: the coordinate that was changed; empty for the start.
        value: its new value.
        factor: new value over old value.
        hps: the candidate.
        outcome: outcome at the candidate's learning rate.
        above: outcome an octave above; None if it was not needed.
        change: loss minus that of the best so far, over the same seeds; unknown if a run diverged.
        decision: `taken` as the new best, `left` because it is no better, or refused as `unstable`.
        why: the reason, in a few words.
    """

    coordinate: str
    value: float
    factor: float
    hps: BaseHPs
    outcome: Outcome
    above: Outcome | None = None
    change: PairedDifference = NO_CHANGE
    decision: Decision = "left"
    why: str = ""

    @property
    def is_taken(self) -> bool:
        """Whether it became the best."""
        return self.decision == "taken"

    @property
    def loss(self) -> float:
        """Mean final loss over seeds."""
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
    return hps.replace(constants={name: value for name, value in constants.items() if value != 1.0} or "ones")


def value_of(hps: BaseHPs, coordinate: str) -> float:
    """Return the value of a coordinate."""
    if coordinate in GLOBAL:
        return float(getattr(hps, coordinate))
    return named_constants(hps.constants).get(coordinate, 1.0)


def descend(
    start: BaseHPs, measure: Measure, passes: int = 1, coordinates: Sequence[str] = COORDINATES
) -> Iterator[Trial]:
    """Yield every candidate in the order of trial; the last one that is taken is the result.

    Args:
        start: initial hyperparameters, usually with all constants one.
        measure: returns the outcome of each candidate, over the same seeds.
        passes: maximum number of passes over all coordinates; a pass without a change is the last.
        coordinates: the coordinates to tune.
    """
    outcome, above = measure([start, _above(start)])
    best = Trial("", math.nan, 1.0, start, outcome, above, decision="taken", why="start")
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
    """Return whether a value relative to its start is within the search range."""
    return 1 / FURTHEST <= ratio <= FURTHEST


def _judged(best: Trial, coordinate: str, factors: Sequence[float], measure: Measure) -> Iterator[Trial]:
    """Yield candidates with their decisions; at most one of them is taken."""
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
    judged = [_with_decision(each, best) for each in trials]
    fit = [each for each in judged if each.is_taken]
    chosen = min(fit, key=lambda each: (each.outcome.diverged, each.loss), default=None)
    for each in judged:
        is_second = each.is_taken and each is not chosen
        yield replace(each, decision="left", why="the other way is better") if is_second else each


def _could_be_taken(trial: Trial, best: Trial) -> bool:
    """Return whether a candidate needs to be trained an octave above its learning rate."""
    if trial.outcome.stability(best.outcome) < 0:
        return False
    is_cured = trial.outcome.diverged < best.outcome.diverged
    # A cost that is merely not significant is not accepted: over all coordinates such costs would add up.
    is_free = trial.change.is_at_most(NEXT_TO_NOTHING) is True
    return trial.change.is_lower or is_free or is_cured


def _with_decision(trial: Trial, best: Trial) -> Trial:
    """Return a candidate with the decision and its reason."""
    if trial.outcome.stability(best.outcome) < 0:
        return replace(trial, decision="unstable", why=_instability(trial.outcome))
    if trial.above is not None and best.above is not None:
        if trial.above.diverged > best.above.diverged:
            return replace(trial, decision="unstable", why=f"{_instability(trial.above)} at twice its lr")
        if trial.change.is_lower:
            return replace(trial, decision="taken", why="lower loss")
        if trial.outcome.stability(best.outcome) > 0 or trial.above.stability(best.above) > 0:
            return replace(trial, decision="taken", why="more stable")
    return replace(trial, why="higher loss" if trial.change.is_higher else "no significant change")


def _instability(outcome: Outcome) -> str:
    if outcome.diverged:
        return f"diverges on {outcome.diverged} of {len(outcome.losses)} seeds"
    return f"uneven loads (max |Load - kappa| {outcome.load:.2f})"


def _above(hps: BaseHPs) -> BaseHPs:
    return moved(hps, "lr", ABOVE)


def ratio(value: float) -> str:
    """Return a number as text, with fractions as in the paper.

    >>> ratio(1 / 16), ratio(4.0), ratio(0.3)
    ('1/16', '4', '0.3')
    """
    inverse = 1 / value
    return f"1/{inverse:.0f}" if value < 1 and abs(inverse - round(inverse)) < 1e-9 else f"{value:g}"


@dataclass
class TrainedCandidates:
    """Trains candidates at the base of a study, as arms of one growing study.

    Args:
        study: base, data, horizon and seeds.
        path: the directory.
        executor: trains the runs.
        should_stop: called often; True stops the training.
        follow: given the study with its new arms, returns a function that is called often while they are trained.
    """

    study: StudySpec
    path: Path
    executor: Executor
    should_stop: Callable[[], bool] = lambda: False
    follow: Callable[[StudyDirectory], Callable[[], None]] = lambda _: lambda: None
    _known: dict[BaseHPs, Outcome] = field(default_factory=dict)

    def measure(self, candidates: Sequence[BaseHPs]) -> list[Outcome]:
        """Return the outcomes of candidates after training what is missing; `Interrupted` when it should stop."""
        if not self._known.keys() >= set(candidates):
            self._train(candidates)
        return [self._known[hps] for hps in candidates]

    def _train(self, candidates: Sequence[BaseHPs]) -> None:
        """Train candidates, and collect the outcomes of all arms, those of an earlier descent included."""
        self.study = with_candidates(self._with_earlier(), candidates)
        directory = open_study(self.path, self.study)
        table = sweep(directory, self.executor, self.should_stop, self.follow(directory))
        if self.should_stop():
            raise Interrupted
        failed = [each for each in table.results if each.status not in DONE]
        if failed:
            raise RunError(
                f"{self.path}: {plural(len(failed), 'run')} failed ({failed[0].error}); see `expertp status`"
            )
        self._known |= {arm.hps: _outcome(table, arm) for arm in table.arms if arm.hps not in self._known}

    def _with_earlier(self) -> StudySpec:
        """Return the study with the arms of an earlier descent in its directory, if it had the same start."""
        if not (self.path / "study.json").exists():
            return self.study
        before = read_study(self.path).study
        return self.study.replace(arms=before.arms) if before.hps == self.study.hps else self.study


def _outcome(table: StudyTable, arm: Arm) -> Outcome:
    axis, steps = table.axes[0], table.study.train.steps
    base = table.base(axis)
    records = table.zero_shot_records(axis, base, arm)
    loads = [load_balance({seed: records.get(seed, ())}) for seed in table.study.seeds]
    late = tuple(load.late(steps) if load else math.nan for load in loads)
    return Outcome(table.zero_shot(axis, base, arm), late)


class Interrupted(Exception):
    """The descent was stopped; finished runs are kept."""


def tuning_study(study: StudySpec) -> StudySpec:
    """Return the study that a descent trains: the base alone, constants one, no verdict."""
    if len(study.seeds) < 3:
        raise InputError(f"seeds: {len(study.seeds)} cannot tell a change from chance; give at least 3, better 5")
    log2_lr = math.log2(study.hps.lr)
    hps = study.hps.replace(constants="ones", lr=2.0**log2_lr)  # exactly the grid value, or there would be two runs
    return study.replace(
        name=f"{study.name}, constants",
        hps=hps,
        axes={"width": AxisSpec(sizes=(study.base.n_embd,), sweep=("log2_lr",))},
        joint={},
        grids=build(GridSpec, {"log2_lr": [log2_lr]}, "hps.lr:"),
        arms={},
        verdict=None,
        refinements=(),
        allow_kappa_change=False,
    )


def with_candidates(study: StudySpec, candidates: Sequence[BaseHPs]) -> StudySpec:
    """Return a study that has candidates as arms, each once."""
    known = {arm.hps for arm in arms(study)}
    added = {
        f"candidate {number}": ArmSpec(
            axes=tuple(study.axes),
            hps={"lr": hps.lr, "init_std": hps.init_std, "constants": named_constants(hps.constants) or "ones"},
        )
        for number, hps in enumerate((hps for hps in dict.fromkeys(candidates) if hps not in known), len(known))
    }
    return study.replace(arms={**study.arms, **added})
