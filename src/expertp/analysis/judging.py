"""The verdict over the curves of one axis: does a hyperparameter of the base hold at larger sizes?

cost         L(size; zero-shot) - min L(size), paired by seed, on the fitted curve of the size
growth       cost at the size minus cost at the base: what a base that is not tuned to its optimum cannot explain
tolerance    the larger of `nats` and `share` of the gain, min L(base) - min L(size)
sensitivity  what one octave off the optimum would cost at the size
drift        slope of the optimum, in octaves, over doublings of the size

TRANSFERS    at every size the whole interval of the cost lies within the tolerance
FAILS        at some size the whole interval of the growth lies beyond the tolerance
UNDECIDED    everything else

Zero-shot diverges at a size where at least half of its runs do. Where fewer do, the size is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from expertp.analysis.curve_fit import CurveFit, Noise, finite_values, fit_curve, interval, pooled_noise
from expertp.analysis.curves import Curve
from expertp.analysis.verdict import Conclusion, Judgement, SizeCost, Verdict
from expertp.study.cells import Size, looks_of
from expertp.study.spec import HP, HPS, StudySpec, VerdictSpec
from expertp.util.statistics import TAIL, UNKNOWN, Estimate, confidence
from expertp.util.text import plural

DIMENSIONS = ("n_embd", "n_layer", "n_exp", "alpha_ffn")
INFINITE = Estimate(math.inf, math.inf, math.inf)


def tail_of(study: StudySpec, axis: str, hp: HP) -> float:
    """Return the probability that intervals of a verdict leave out on each side, in an adaptive sweep that of its look.

    >>> from expertp.study.load import load_study
    >>> tail_of(load_study("configs/study.yaml", []), "width", "log2_lr")
    0.025
    """
    looks = looks_of(study, axis, hp)
    return tail_of_look(looks) if looks else TAIL


def tail_of_axis(study: StudySpec, axis: str) -> float:
    """Return the same for zero-shot runs of other arms: any look at the curves of an axis may have added to them."""
    looks = [found for hp in HPS if (found := looks_of(study, axis, hp))]
    return tail_of_look(1 + sum(each - 1 for each in looks)) if looks else TAIL


def tail_of_look(number: int) -> float:
    """Return the probability that intervals leave out on each side at the k-th look of an adaptive sweep.

    It is the share 1 / (k (k + 1)) of the whole tail (alpha spending); the shares of any number of looks add up to less
    than 1.

    >>> tail_of_look(1), tail_of_look(4)
    (0.0125, 0.00125)
    """
    return TAIL / (number * (number + 1))


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
    # Every size may be fitted at the same values: those at which no run has diverged anywhere. A value at which runs
    # were stopped is left out at their size only: it may be the best of another.
    known = [{*finite_values(each), *each.stopped_values} for each in curves]
    shared = set.intersection(*known) if known else set()
    fits = {
        each.size: fit
        for place, each in enumerate(curves)
        if (fit := fit_curve(each, noise, shared, seed=place)) is not None
    }
    base = next((fit for size, fit in fits.items() if size.is_base), None)
    sizes = [each for each in curves if not each.size.is_base]
    strict = tail_of_growth(tail, len(sizes))
    costs = []
    for each in sizes:
        fit = fits.get(each.size)
        gain = base.loss - fit.loss if base and fit else math.nan
        tolerance = (tolerances or {}).get(each.size, tolerance_of(rule, gain))
        if diverges(each.zero_shot_losses):
            costs.append(SizeCost(each.size, INFINITE, INFINITE, tolerance, gain))
        elif diverged := diverged_runs(each.zero_shot_losses):
            costs.append(SizeCost(each.size, UNKNOWN, UNKNOWN, tolerance, gain, diverged=diverged))
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
    conclusion, reason = conclude(numbers)
    return replace(numbers, conclusion=conclusion, reason=reason)


def tail_of_growth(tail: float, n_sizes: int) -> float:
    """Return the tail of the growth at each of several sizes, since any of them may fail (Bonferroni)."""
    return tail / max(n_sizes, 1)


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


def diverges(losses: Sequence[float]) -> bool:
    """Return whether at least half of the zero-shot runs with a result have diverged, so that zero-shot fails."""
    known = [loss for loss in losses if not math.isnan(loss)]
    return bool(known) and 2 * known.count(math.inf) >= len(known)


def diverged_runs(losses: Sequence[float]) -> str:
    """Return how many zero-shot runs have diverged, in words; empty if none has.

    Where one has, the others say too little about zero-shot: they are the seeds that happened to be stable.

    >>> diverged_runs((3.0, math.inf, 3.1)), diverged_runs((3.0, 3.1))
    ('1 of 3 zero-shot runs', '')
    """
    diverged = losses.count(math.inf)
    return f"{diverged} of {plural(len(losses), 'zero-shot run')}" if diverged else ""


def _why_open(curves: Sequence[Curve]) -> str:
    """Return why curves cannot be judged; empty if they can."""
    if missing := sum(sum(each.n_missing) for each in curves):
        return f"{missing} of {sum(len(each.losses) * each.n_seeds for each in curves)} runs have no result"
    if len(curves) < 2:
        return "the axis has no other size at which the grid is swept"
    if diverged := diverged_runs(next(each for each in curves if each.size.is_base).zero_shot_losses):
        return f"{diverged} of the base itself diverge"
    return ""


def conclude(seen: Judgement) -> tuple[Conclusion, str]:
    """Return conclusion and reason for the costs of a judgement."""
    worst = seen.worst
    if worst is None:
        return "UNDECIDED", "fewer than three values near the zero-shot value have finished at every size"
    where, tolerance = f"at {worst.size.scale:g} times the base", f"the tolerance of {worst.tolerance:.4f}"
    if worst.cost.value == math.inf:
        return "FAILS", f"zero-shot runs diverge {where}"
    ends = " to ".join("unknown" if math.isnan(end) else f"{end:.4f}" for end in (worst.cost.low, worst.cost.high))
    cost = f"zero-shot costs {worst.cost.value:.4f} nats {where} ({confidence(seen.tail)}: {ends})"
    if worst.is_beyond:
        return "FAILS", f"{cost}, beyond {tolerance}"
    if worst.diverged:
        return "UNDECIDED", f"{worst.diverged} diverge {where}"
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
