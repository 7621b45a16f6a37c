"""Constant multipliers of a base model by coordinate descent over seeds (paper, appendix D.1).

    all ones  ->  one coordinate at a time, up and down, further the way that helps  ->  the next coordinate

Coordinates are the global learning rate and init std, then lr and init of every family of parameters. A change is taken
when the loss falls significantly over the same seeds and training becomes no less stable: the number of seeds that
diverge counts, at the candidate's learning rate and an octave above it. Where the best so far is unstable, a change
that makes it less so is taken as well, if it does not cost loss.

`descend` knows nothing of training: it asks `measure` for losses. All runs are cells of one study, so that whatever is
there is not trained again, and the same command after an interruption walks the same path.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from expertp.analysis.curves import StudyTable
from expertp.analysis.paired import Change, paired
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
# How far a coordinate may lie from its start for another step to be tried.
FURTHEST = 4.0**4
# An octave above the learning rate training must not diverge.
ABOVE = 2.0
NO_CHANGE = Change(0.0, 0.0, 0)
Losses = tuple[float, ...]
Measure = Callable[[Sequence[BaseHPs]], list[Losses]]


@dataclass(frozen=True)
class Trial:
    """One candidate beside the best so far.

    Args:
        coordinate: what was changed; empty for the start.
        value: to what.
        hps: the candidate.
        losses: one per seed; inf where it diverged.
        above: the same an octave above its learning rate; None where that did not matter.
        change: its loss minus that of the best so far, over the same seeds; unknown where one of them diverges.
        is_taken: whether it became the best.
        why: in a few words.
    """

    coordinate: str
    value: float
    hps: BaseHPs
    losses: Losses
    above: Losses | None = None
    change: Change = NO_CHANGE
    is_taken: bool = False
    why: str = ""

    @property
    def loss(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(self.losses)

    @property
    def diverged(self) -> int:
        """Seeds that diverge at its learning rate."""
        return self.losses.count(math.inf)

    @property
    def diverged_above(self) -> int | None:
        """Seeds that diverge an octave above; None where it is not known."""
        return None if self.above is None else self.above.count(math.inf)


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
        measure: returns the loss per seed of each candidate.
        passes: how often all coordinates are gone through; a pass that takes nothing is the last.
        coordinates: what may change.
    """
    losses, above = measure([start, _above(start)])
    best = Trial("", math.nan, start, losses, above, is_taken=True, why="start")
    yield best
    for _ in range(passes):
        before = best
        for coordinate in coordinates:
            step = GLOBAL_STEP if coordinate in GLOBAL else CONSTANT_STEP
            tried = list(_judged(best, coordinate, (1 / step, step), measure))
            yield from tried
            while taken := [each for each in tried if each.is_taken]:
                direction = taken[0].value / value_of(best.hps, coordinate)
                best = taken[0]
                if not 1 / FURTHEST <= value_of(best.hps, coordinate) / value_of(start, coordinate) <= FURTHEST:
                    break
                tried = list(_judged(best, coordinate, (direction,), measure))
                yield from tried
        if best is before:
            return


def _judged(best: Trial, coordinate: str, factors: Sequence[float], measure: Measure) -> Iterator[Trial]:
    """Yield candidates with their verdicts; at most one, the best of them, is taken."""
    candidates = [moved(best.hps, coordinate, factor) for factor in factors]
    trials = [
        Trial(coordinate, value_of(hps, coordinate), hps, losses, change=paired(losses, best.losses))
        for hps, losses in zip(candidates, measure(candidates), strict=True)
    ]
    hopeful = [each for each in trials if _could_be_taken(each, best)]
    if hopeful:
        above = measure([_above(each.hps) for each in hopeful])
        known = {each.value: found for each, found in zip(hopeful, above, strict=True)}
        trials = [replace(each, above=known.get(each.value)) for each in trials]
    verdicts = [_verdict(each, best) for each in trials]
    fit = [each for each, (is_fit, _) in zip(trials, verdicts, strict=True) if is_fit]
    chosen = min(fit, key=lambda each: (each.diverged_above or 0, each.loss), default=None)
    for each, (is_fit, why) in zip(trials, verdicts, strict=True):
        is_second = is_fit and each is not chosen
        yield replace(each, is_taken=each is chosen, why="the other way is better" if is_second else why)


def _could_be_taken(trial: Trial, best: Trial) -> bool:
    if trial.diverged > best.diverged:
        return False
    if trial.diverged < best.diverged:
        return True
    return trial.change.is_lower or (bool(best.diverged_above) and not trial.change.is_higher)


def _verdict(trial: Trial, best: Trial) -> tuple[bool, str]:
    """Return whether a candidate may be taken, and why or why not."""
    n = len(trial.losses)
    if trial.diverged > best.diverged:
        return False, f"diverges on {trial.diverged} of {n} seeds"
    if _could_be_taken(trial, best):
        above, before = trial.diverged_above or 0, best.diverged_above or 0
        if above > before:
            return False, f"diverges on {above} of {n} seeds at twice its lr"
        if trial.change.is_lower:
            return True, "lower loss"
        if above < before or trial.diverged < best.diverged:
            return True, "more stable"
    return False, "higher loss" if trial.change.is_higher else "no significant change"


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

    def measure(self, candidates: Sequence[BaseHPs]) -> list[Losses]:
        """Return losses per seed, after training what is missing; raises `Interrupted` when told to stop."""
        self.study = with_candidates(self._with_earlier(), candidates)
        directory = open_study(self.path, self.study)
        results = run_study(directory, self.executor, self.should_stop, self.follow(directory))
        if self.should_stop():
            raise Interrupted
        failed = [each for each in results if each.status not in DONE]
        if failed:
            raise RunError(f"{self.path}: {len(failed)} runs have failed ({failed[0].error}); see `expertp status`")
        table = StudyTable(directory.study, results)
        axis = next(iter(self.study.axes))
        names = [self.study.contrast_of(hps) or self.study.hps.rules for hps in candidates]
        return [table.zero_shot(axis, 1.0, name) for name in names]

    def _with_earlier(self) -> StudySpec:
        """Return the study with all that an earlier descent in its directory has tried."""
        if not (self.path / "study.json").exists():
            return self.study
        return self.study.replace(contrasts={**read_study(self.path).study.contrasts, **self.study.contrasts})


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
        grids=GridSpec(log2_lr=(log2_lr,)),
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
