"""Do the base's hyperparameters hold at larger sizes? The cost of zero-shot at each size, and the verdict of each axis.

cost         L(size; zero-shot) - min L(size), paired by seed, on the fitted curve of the size
growth       cost at the size minus cost at the base: what a base that is not tuned to its optimum cannot explain
tolerance    the larger of `nats` and `share` of the gain, min L(base) - min L(size)
sensitivity  what one octave off the optimum would cost at the size
drift        slope of the optimum, in octaves, over doublings of the size

TRANSFERS    at every size the whole interval of the cost lies within the tolerance
FAILS        at some size the whole interval of the growth lies beyond the tolerance
UNDECIDED    everything else

An arm that is not re-tuned at a size is judged by its zero-shot loss minus the lowest loss of the study's own arm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from expertp.analysis.curve_fit import DRAWS, CurveFit, Drawn, Noise, finite_values, fit_curve, interval, pooled_noise
from expertp.analysis.curves import Curve, curves
from expertp.analysis.horizon import horizon_drift
from expertp.study.cells import Arm, Size, swept_on
from expertp.study.spec import HP, StudySpec, VerdictSpec
from expertp.study.table import StudyTable
from expertp.util.statistics import TAIL, UNKNOWN, Estimate

Conclusion = Literal["TRANSFERS", "FAILS", "UNDECIDED"]
Power = Literal["control fails", "NO POWER", "no control"]
DIMENSIONS = ("n_embd", "n_layer", "n_exp", "alpha_ffn")
INFINITE = Estimate(math.inf, math.inf, math.inf)


@dataclass(frozen=True)
class SizeCost:
    """What zero-shot costs at one size, nats.

    Args:
        size: the size.
        cost: loss of zero-shot minus the lowest loss; infinite where zero-shot runs diverge.
        growth: this cost minus that at the base.
        tolerance: largest cost that the study allows at this size.
        gain: lowest loss of the base minus lowest loss of the size.
        sensitivity: what one octave off the optimum would cost; unknown for an arm that is not re-tuned.
    """

    size: Size
    cost: Estimate
    growth: Estimate
    tolerance: float
    gain: float
    sensitivity: Estimate = UNKNOWN

    def to_dict(self) -> dict[str, Any]:
        """Return the tree of one size in verdict.json."""
        return {
            "scale": self.size.scale,
            **_tree("cost", self.cost),
            **_tree("growth", self.growth),
            "tolerance": _or_null(self.tolerance),
            "gain": _or_null(self.gain),
            **_tree("sensitivity", self.sensitivity),
        }

    @property
    def is_within(self) -> bool:
        """Whether the whole interval of the cost lies within the tolerance."""
        return self.cost.high <= self.tolerance

    @property
    def is_beyond(self) -> bool:
        """Whether the whole interval of the growth lies beyond the tolerance."""
        return self.growth.low > self.tolerance

    @property
    def is_explained_by_base(self) -> bool:
        """Whether zero-shot costs more than the tolerance, but about as much at the base itself."""
        return self.cost.low > self.tolerance >= self.growth.value


@dataclass(frozen=True, eq=False, kw_only=True)
class Judgement:
    """Whether what was tuned at the base holds along one axis in one arm.

    Args:
        axis: the axis.
        arm: the arm.
        conclusion: None where the study asks for no verdict (`verdict: null`).
        reason: one sentence with numbers.
        costs: the cost of zero-shot at each size but the base.
        base_cost: what the base's hyperparameters cost at the base itself, nats.
        n_seeds: number of seeds.
        tail: probability that each interval leaves out on each side.
    """

    axis: str
    arm: Arm
    conclusion: Conclusion | None = None
    reason: str = "the study asks for no verdict (verdict: null)"
    costs: tuple[SizeCost, ...]
    base_cost: Estimate
    n_seeds: int
    tail: float = TAIL

    @property
    def worst(self) -> SizeCost | None:
        """The size that decides: one that is certainly beyond its tolerance, else the nearest to its tolerance."""
        return max(self.costs, key=lambda each: (each.is_beyond, each.cost.high - each.tolerance), default=None)

    @property
    def cost(self) -> Estimate:
        """The cost of zero-shot at the size that decides."""
        return self.worst.cost if self.worst else UNKNOWN

    def to_dict(self) -> dict[str, Any]:
        """Return the tree of one entry of verdict.json; a number that is not finite becomes null."""
        return {
            "axis": self.axis,
            "arm": self.arm.name,
            "verdict": self.conclusion,
            "reason": self.reason,
            "sizes": [each.to_dict() for each in self.costs],
            **_tree("base_cost", self.base_cost),
            "confidence": round(1 - 2 * self.tail, 6),
            "n_seeds": self.n_seeds,
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class Verdict(Judgement):
    """Whether one hyperparameter transfers along one axis, from curves at every size.

    Args:
        hp: the hyperparameter.
        drift: octaves of the optimum per doubling of the size, for a joint axis per doubling of each dimension; unknown
            where it cannot be estimated, an end of the interval infinite where an optimum is only a bound.
        fits: the fitted curve of each size.
        noise: noise of a run.
        power: whether an arm that should fail on this axis does.
    """

    hp: HP
    drift: Estimate
    fits: Mapping[Size, CurveFit]
    noise: Noise
    power: Power = "no control"

    @property
    def base_fit(self) -> CurveFit | None:
        """The fitted curve of the base, where it is known."""
        return next((fit for size, fit in self.fits.items() if size.is_base), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the tree of one entry of verdict.json."""
        return {**super().to_dict(), "hp": self.hp, **_tree("drift", self.drift), "power": self.power}


@dataclass(frozen=True, eq=False)
class StudyVerdict:
    """The verdicts of a study.

    Args:
        study: name of the study.
        axes: verdicts of the study's own arm.
        others: verdicts of other arms.
        horizon: octaves by which the base's optimal learning rate moves per doubling of steps.
        diverged: number of diverged runs of all arms.
        failed: number of failed runs.
        missing: number of runs without a result.
    """

    study: str
    axes: tuple[Verdict, ...]
    others: tuple[Judgement, ...]
    horizon: Estimate
    diverged: int
    failed: int
    missing: int

    def to_dict(self) -> dict[str, Any]:
        """Return the tree of verdict.json."""
        return {
            "study": self.study,
            "axes": [each.to_dict() for each in self.axes],
            "others": [each.to_dict() for each in self.others],
            **_tree("horizon", self.horizon),
            "diverged": self.diverged,
            "failed": self.failed,
            "missing": self.missing,
        }


def _or_null(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _tree(name: str, estimate: Estimate) -> dict[str, Any]:
    return {name: _or_null(estimate.value), f"{name}_ci": [_or_null(estimate.low), _or_null(estimate.high)]}


def judge(table: StudyTable) -> StudyVerdict:
    """Return whether each hyperparameter transfers along each axis, in the study's own arm and in others.

    Args:
        table: the study's cells with their results, from `run_study` or `StudyDirectory.table`.

    Returns:
        One `Verdict` per axis and hyperparameter that is swept on it, and those of other arms.

    >>> from expertp.study.table import Result
    >>> from expertp.study.cells import expand
    >>> from expertp.study.load import build_study
    >>> study = build_study({
    ...     "name": "example", "base": {"n_embd": 64, "n_layer": 2, "n_exp": 4}, "hps": {"lr": 2**-7},
    ...     "train": {"data": "tokens", "steps": 100, "batch_tokens": 1024},
    ...     "axes": {"width": {"sizes": [64, 128], "sweep": ["log2_lr"]}}, "grids": {"log2_lr": [-9, -8, -7, -6, -5]},
    ... }, "example:")
    >>> def loss(run):
    ...     return 3 + 0.05 * (math.log2(run.hps.lr) + 7) ** 2 + 1e-4 * run.train.seed ** math.log2(run.hps.lr + 2)
    >>> results = [Result(cell.run, "", "finished", val_loss=loss(cell.run)) for cell in expand(study)]
    >>> [(each.axis, each.hp, each.conclusion) for each in judge(StudyTable.join(study, results)).axes]
    [('width', 'log2_lr', 'TRANSFERS')]
    """
    rule, own = table.study.verdict, table.own
    swept = {(axis, hp): curves(table, axis, own, hp) for axis in table.axes for hp in swept_on(table.study, axis)}
    noise = pooled_noise([each for found in swept.values() for each in found])
    verdicts = {
        (axis, hp): judge_curves(found, rule, noise, tail=tail_of(table.study, axis, hp))
        for (axis, hp), found in swept.items()
        if len(found) > 1 or len(table.sizes(axis)) == 1  # an axis may have zero-shot runs only
    }
    others = tuple(
        each
        for arm in table.arms
        if arm != own
        for axis in table.axes_of(arm)
        for each in _judge_arm(table, axis, arm, next((each for each in verdicts.values() if each.axis == axis), None))
    )
    statuses = [result.status for result in table.results]
    return StudyVerdict(
        study=table.study.name,
        axes=tuple(replace(each, power=_power(table, each, others)) for each in verdicts.values()),
        others=others,
        horizon=horizon_drift(table),
        diverged=statuses.count("diverged"),
        failed=statuses.count("failed") + statuses.count("damaged"),
        missing=statuses.count("missing") + statuses.count("unfinished"),
    )


def tail_of(study: StudySpec, axis: str, hp: HP) -> float:
    """Return the probability that intervals of a verdict leave out on each side.

    An adaptive sweep looks at a verdict until it is decided. Its k-th look gets the share 1 / (k (k + 1)) of the whole
    tail (alpha spending); the shares of any number of looks add up to less than 1.

    >>> from expertp.study.load import load_study
    >>> tail_of(load_study("configs/study.yaml", []), "width", "log2_lr")
    0.025
    """
    looks = [each.looks for each in study.chosen or () if (each.axis, each.hp) == (axis, hp)]
    return TAIL / (looks[0] * (looks[0] + 1)) if looks else TAIL


def judge_curves(
    curves: Sequence[Curve],
    rule: VerdictSpec | None,
    noise: Noise | None = None,
    tolerances: Mapping[Size, float] | None = None,
    tail: float = TAIL,
) -> Verdict:
    """Return the verdict over the curves of an axis, by increasing scale.

    Args:
        curves: one curve per size that is swept, the base's among them.
        rule: the tolerance; None: numbers without a conclusion.
        noise: noise of a run; by default pooled over these curves.
        tolerances: tolerance by size; by default from the gains of these curves.
        tail: probability that intervals leave out on each side.
    """
    noise = noise or pooled_noise(curves)
    # The same values at every size: those at which no run has diverged anywhere.
    known = [set(finite_values(each)) for each in curves]
    shared = set.intersection(*known) if known else set()
    fits = {
        each.size: fit
        for place, each in enumerate(curves)
        if (fit := fit_curve(each, noise, shared, seed=place)) is not None
    }
    base = next((fit for size, fit in fits.items() if size.is_base), None)
    sizes = [each for each in curves if not each.size.is_base]
    strict = tail / max(len(sizes), 1)  # FAILS at any of several sizes
    costs = []
    for each in sizes:
        fit = fits.get(each.size)
        gain = base.loss - fit.loss if base and fit else math.nan
        tolerance = (tolerances or {}).get(each.size, tolerance_of(rule, gain))
        if _diverges(each):
            costs.append(SizeCost(each.size, INFINITE, INFINITE, tolerance, gain))
        elif fit and base:
            growth = (fit.cost - base.cost).estimate(strict)
            costs.append(
                SizeCost(each.size, fit.cost_estimate(tail), growth, tolerance, gain, fit.sensitivity.estimate(tail))
            )
    numbers = Verdict(
        axis=curves[0].axis,
        arm=curves[0].arm,
        hp=curves[0].hp,
        costs=tuple(costs),
        base_cost=base.cost_estimate(tail) if base else UNKNOWN,
        drift=drift_of(fits, tail),
        fits=fits,
        noise=noise,
        n_seeds=min(each.n_seeds for each in curves),
        tail=tail,
    )
    if rule is None:
        return numbers
    if why_open := _why_open(curves):
        return replace(numbers, conclusion="UNDECIDED", reason=why_open)
    conclusion, reason = _decide(numbers)
    return replace(numbers, conclusion=conclusion, reason=reason)


def tolerance_of(rule: VerdictSpec | None, gain: float) -> float:
    """Return the largest cost of zero-shot at a size that gains so much over the base; without a rule, by default.

    >>> tolerance_of(None, 0.2), tolerance_of(None, -0.1), tolerance_of(None, math.nan)
    (0.020000000000000004, 0.005, 0.005)
    """
    rule = rule or VerdictSpec()
    return max(rule.nats, rule.share * gain) if gain > 0 else rule.nats


def drift_of(fits: Mapping[Size, CurveFit], tail: float = TAIL) -> Estimate:
    """Return the slope of optima over doublings of the size; unknown with fewer than two sizes."""
    if len(fits) < 2:
        return UNKNOWN
    doublings = np.array([doublings_of(size, list(fits)) for size in fits])
    weights = (doublings - doublings.mean()) / ((doublings - doublings.mean()) ** 2).sum()
    # A size exactly in the middle has weight 0, and 0 times an infinite bound would be nan.
    weighted = [(w, fit) for w, fit in zip(weights, fits.values(), strict=True) if abs(w) > 1e-9]
    bounds = [(w, *fit.bounds()) for w, fit in weighted]
    low = np.asarray(sum(w * (lowest if w > 0 else highest) for w, lowest, highest in bounds))
    high = np.asarray(sum(w * (highest if w > 0 else lowest) for w, lowest, highest in bounds))
    return Estimate(float(sum(w * fit.optimum.value for w, fit in weighted)), *interval(low, high, tail))


def doublings_of(size: Size, sizes: Sequence[Size]) -> float:
    """Return log2 of a size's scale, divided by the number of dimensions that grow among some sizes.

    A joint axis grows along several dimensions; there, one doubling is a doubling of each.
    """
    grown = [name for name in DIMENSIONS if len({getattr(each.model, name) for each in sizes}) > 1]
    return math.log2(size.scale) / max(len(grown), 1)


def _diverges(curve: Curve) -> bool:
    """Return whether half of the zero-shot runs have diverged, or runs at every value."""
    losses = dict(zip(curve.log2_values, curve.losses, strict=True)).get(curve.centre, ())
    known = [loss for loss in losses if not math.isnan(loss)]
    return bool(known) and 2 * known.count(math.inf) >= len(known)


def _why_open(curves: Sequence[Curve]) -> str:
    """Return why curves cannot be judged; empty if they can."""
    if missing := sum(sum(each.n_missing) for each in curves):
        return f"{missing} of {sum(len(each.losses) * each.n_seeds for each in curves)} runs have no result"
    if len(curves) < 2:
        return "the axis has no other size at which the grid is swept"
    if _diverges(next(each for each in curves if each.size.is_base)):
        return "zero-shot runs of the base itself diverge"
    return ""


def _decide(seen: Judgement) -> tuple[Conclusion, str]:
    """Return conclusion and reason for the costs of a judgement."""
    worst = seen.worst
    if worst is None:
        return "UNDECIDED", "fewer than three values near the zero-shot value have finished at every size"
    where, tolerance = f"at {worst.size.scale:g} times the base", f"the tolerance of {worst.tolerance:.4f}"
    if worst.cost.value == math.inf:
        return "FAILS", f"zero-shot runs diverge {where}"
    ends = " to ".join("unknown" if math.isnan(end) else f"{end:.4f}" for end in (worst.cost.low, worst.cost.high))
    cost = f"zero-shot costs {worst.cost.value:.4f} nats {where} ({100 * (1 - 2 * seen.tail):.3g}%: {ends})"
    if worst.is_beyond:
        return "FAILS", f"{cost}, beyond {tolerance}"
    if all(each.is_within for each in seen.costs):
        return "TRANSFERS", f"{cost}, within {tolerance}"
    if math.isnan(worst.cost.high):
        return "UNDECIDED", "there is no estimate of the noise over seeds"
    if worst.cost.high == math.inf:
        return "UNDECIDED", f"the optimum {where} may lie beyond the values of the grid"
    if worst.is_explained_by_base:
        own = f"the base itself lies {seen.base_cost.value:.4f} nats above its optimum"
        return "UNDECIDED", f"{cost}, but {own}; tune the base first"
    return "UNDECIDED", f"{cost}, and {tolerance} lies in between"


def _judge_arm(table: StudyTable, axis: str, arm: Arm, own: Verdict | None) -> Sequence[Judgement]:
    """Return the verdicts of another arm: one per re-tuned hyperparameter, or one over its zero-shot runs."""
    swept = {hp: found for hp in swept_on(table.study, axis) if len(found := curves(table, axis, arm, hp)) > 1}
    noise = pooled_noise([each for found in swept.values() for each in found])
    tolerances = {each.size: each.tolerance for each in own.costs} if own else None
    retuned = [
        judge_curves(found, table.study.verdict, noise, tolerances, tail_of(table.study, axis, hp))
        for hp, found in swept.items()
        if any(each.size.is_base for each in found)
    ]
    return retuned or [_judge_zero_shot(table, axis, arm, own)]


def _judge_zero_shot(table: StudyTable, axis: str, arm: Arm, own: Verdict | None) -> Judgement:
    """Judge the zero-shot runs of an arm by the lowest losses of the study's own arm."""
    references = {size: _reference(table, axis, size, own) for size in table.sizes(axis)}
    base_reference = references[table.base(axis)]
    behind = {
        size: _behind(table.zero_shot_pairs(axis, size, arm, table.own), reference.cost, place)
        for place, (size, reference) in enumerate(references.items())
    }
    base, costs = behind[table.base(axis)], []
    for size, found in behind.items():
        if not size.is_base and found is not None and base is not None:
            gain = base_reference.loss - references[size].loss
            growth = (found - base).estimate() if math.isfinite(found.value) else INFINITE
            costs.append(SizeCost(size, found.estimate(), growth, tolerance_of(table.study.verdict, gain), gain))
    numbers = Judgement(
        axis=axis,
        arm=arm,
        costs=tuple(costs),
        base_cost=base.estimate() if base is not None else UNKNOWN,
        n_seeds=len(table.zero_shot(axis, table.base(axis), arm)),
    )
    if table.study.verdict is None:
        return numbers
    if any(math.isnan(loss) for size in references for loss in table.zero_shot(axis, size, arm)):
        return replace(numbers, conclusion="UNDECIDED", reason="some zero-shot runs have no result")
    conclusion, reason = _decide(numbers)
    return replace(numbers, conclusion=conclusion, reason=reason)


@dataclass(frozen=True, eq=False)
class _Reference:
    """The lowest loss of the study's own arm at a size, and what its own zero-shot costs there."""

    loss: float
    cost: Drawn


def _reference(table: StudyTable, axis: str, size: Size, own: Verdict | None) -> _Reference:
    """Return the lowest loss at a size; where the size is not swept, that of zero-shot."""
    if own is not None and size in own.fits:
        return _Reference(own.fits[size].loss, own.fits[size].cost)
    losses = [loss for loss in table.zero_shot(axis, size, table.own) if math.isfinite(loss)]
    return _Reference(float(np.mean(losses)) if losses else math.nan, Drawn(0.0, np.zeros(DRAWS)))


def _behind(pairs: Sequence[tuple[float, float]], own_cost: Drawn, seed: int) -> Drawn | None:
    """Return the loss of an arm minus the lowest of the study's own arm, from zero-shot losses; None if unknown."""
    changes = [theirs - ours for theirs, ours in pairs if not math.isnan(theirs - ours)]
    if not changes:
        return None
    if 2 * changes.count(math.inf) >= len(changes):
        return Drawn(math.inf, np.full(DRAWS, math.inf))
    finite = [change for change in changes if math.isfinite(change)]
    mean, n = float(np.mean(finite)), len(finite)
    if n < 2 or not own_cost.draws.size:
        return Drawn(mean + own_cost.value, np.empty(0))
    error = float(np.std(finite, ddof=1)) / math.sqrt(n)
    draws = np.random.default_rng((seed, 1)).standard_t(n - 1, DRAWS)
    return Drawn(mean + own_cost.value, mean + error * draws + own_cost.draws)


def _power(table: StudyTable, verdict: Verdict, others: Sequence[Judgement]) -> Power:
    """Return whether a control of an axis fails on it."""
    controls = {name for name, spec in table.study.arms.items() if verdict.axis in spec.control}
    found = [
        each
        for each in others
        if each.arm.name in controls and each.axis == verdict.axis and getattr(each, "hp", verdict.hp) == verdict.hp
    ]
    if not found:
        return "no control"
    return "control fails" if any(each.conclusion == "FAILS" for each in found) else "NO POWER"
