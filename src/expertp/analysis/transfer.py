"""Does the base's optimum hold at larger sizes? Drift, zero-shot excess loss, and the verdict of each axis.

drift   slope of the optimum, in octaves, over log2 of the scale
excess  L(target; base's optimum) - min L(target), on the target's fitted curve

Both intervals come from bootstrap draws of all sizes. The excess cannot be negative, and percentiles of a quantity at
its bound are biased. Its interval is therefore computed with the sign of the distance between the two optima, and
folded afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from expertp.analysis.curves import Curve, curves
from expertp.analysis.local_fit import Floats, Minima, Points, evaluate
from expertp.analysis.optimum import FittedCurve, Noise, Optimum, fit_curve, interval, pooled_noise
from expertp.analysis.remedies import Remedy, narrower_interval, wider_grid
from expertp.study.cells import Size, swept_on
from expertp.study.spec import HP, VerdictSpec
from expertp.study.table import StudyTable
from expertp.util.statistics import UNKNOWN, Estimate

Conclusion = Literal["PASS", "FAIL", "INCONCLUSIVE"]


@dataclass(frozen=True, eq=False)
class Verdict:
    """Whether one hyperparameter transfers along one axis.

    Args:
        axis: the axis.
        hp: the hyperparameter.
        conclusion: None where the study asks for no verdict (`verdict: null`).
        reason: one sentence with numbers.
        remedies: runs that would decide an INCONCLUSIVE verdict, best first.
        drift: octaves of the optimum per doubling of the scale; unknown where it cannot be estimated, an end of the
            interval infinite where an optimum is only a bound.
        excess: zero-shot excess loss at the worst size, nats; inf where that size diverges.
        excess_limit: largest excess that the study allows, nats.
        edge: whether an optimum lies on the edge of the grid.
        n_seeds: seeds of the curves.
        noise: noise of a run's loss, pooled over the curves.
        optima: the optimum of each size; sizes without any finite loss have none.
        excess_at: the excess of each size but the base.
    """

    axis: str
    hp: HP
    conclusion: Conclusion | None
    reason: str
    remedies: tuple[Remedy, ...]
    drift: Estimate
    excess: Estimate
    excess_limit: float
    edge: bool
    n_seeds: int
    noise: Noise
    optima: Mapping[Size, Optimum]
    excess_at: Mapping[Size, Estimate]

    @property
    def base_optimum(self) -> Optimum | None:
        """The optimum of the base, where it is known."""
        return next((optimum for size, optimum in self.optima.items() if size.is_base), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the tree of one entry of verdict.json; a number that is not finite becomes null."""
        return {
            "axis": self.axis,
            "hp": self.hp,
            "verdict": self.conclusion,
            "reason": self.reason,
            "drift_octaves_per_doubling": _or_null(self.drift.value),
            "ci": [_or_null(self.drift.low), _or_null(self.drift.high)],
            "excess": _or_null(self.excess.value),
            "excess_ci": [_or_null(self.excess.low), _or_null(self.excess.high)],
            "edge": self.edge,
            "n_seeds": self.n_seeds,
            "needs": [
                {"kind": each.kind, "values": list(each.values), "seeds": list(each.seeds)} for each in self.remedies
            ],
        }


@dataclass(frozen=True, eq=False)
class StudyVerdict:
    """The verdicts of a study, and the number of runs of all arms without a final loss."""

    study: str
    axes: tuple[Verdict, ...]
    diverged: int
    failed: int
    missing: int

    def to_dict(self) -> dict[str, Any]:
        """Return the tree of verdict.json."""
        return {
            "study": self.study,
            "axes": [each.to_dict() for each in self.axes],
            "diverged": self.diverged,
            "failed": self.failed,
            "missing": self.missing,
        }


def _or_null(value: float) -> float | None:
    return value if math.isfinite(value) else None


def judge(table: StudyTable) -> StudyVerdict:
    """Return whether each hyperparameter transfers along each axis, under the study's own arm.

    Args:
        table: the study's cells with their results, from `run_study` or `StudyDirectory.table`.

    Returns:
        One `Verdict` per axis and hyperparameter that is swept on it.

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
    [('width', 'log2_lr', 'PASS')]
    """
    statuses = [result.status for result in table.results]
    return StudyVerdict(
        study=table.study.name,
        axes=tuple(
            judge_curves(curves(table, axis, table.own, hp), table.study.verdict)
            for axis in table.axes
            for hp in swept_on(table.study, axis)
        ),
        diverged=statuses.count("diverged"),
        failed=statuses.count("failed") + statuses.count("damaged"),
        missing=statuses.count("missing") + statuses.count("unfinished"),
    )


def judge_curves(curves: Sequence[Curve], rule: VerdictSpec | None) -> Verdict:
    """Return the verdict over the curves of an axis, by increasing scale; `rule` None: numbers without a conclusion."""
    limits, noise = rule or VerdictSpec(), pooled_noise(curves)
    fits = {each.size: fit_curve(each, noise, seed=place) for place, each in enumerate(curves)}
    fitted = {size: fit for size, fit in fits.items() if fit is not None}
    optima = {size: fit.optimum for size, fit in fitted.items()}
    excess_at = _excess_by_size(curves, fitted)
    seed_sd = noise.seed_sd if math.isfinite(noise.seed_sd) else 0.0
    limit = max(limits.excess_nats, limits.excess_sds * seed_sd)
    numbers = Verdict(
        axis=curves[0].axis,
        hp=curves[0].hp,
        conclusion=None,
        reason="the study asks for no verdict (verdict: null)",
        remedies=(),
        drift=drift_of(optima),
        # The worst size: one that certainly exceeds the limit, else the one with the highest upper end.
        excess=max(excess_at.values(), key=lambda each: (each.low > limit, each.high), default=UNKNOWN),
        excess_limit=limit,
        edge=any(optimum.edge for optimum in optima.values()),
        n_seeds=curves[0].n_seeds,
        noise=noise,
        optima=optima,
        excess_at=excess_at,
    )
    if rule is None:
        return numbers
    conclusion, reason, remedies = _decide(numbers, curves, fitted, rule.drift)
    return replace(numbers, conclusion=conclusion, reason=reason, remedies=remedies)


def drift_of(optima: Mapping[Size, Optimum]) -> Estimate:
    """Return the slope of optima over log2 of their scale; unknown with fewer than two sizes."""
    if len(optima) < 2:
        return UNKNOWN
    octaves = np.log2([size.scale for size in optima])
    weights = (octaves - octaves.mean()) / ((octaves - octaves.mean()) ** 2).sum()
    # A size exactly in the middle has weight 0, and 0 times an infinite bound would be nan.
    weighted = [(w, optimum) for w, optimum in zip(weights, optima.values(), strict=True) if abs(w) > 1e-9]
    low = sum(w * (optimum.draws_low if w > 0 else optimum.draws_high) for w, optimum in weighted)
    high = sum(w * (optimum.draws_high if w > 0 else optimum.draws_low) for w, optimum in weighted)
    drift = float(sum(w * optimum.at.value for w, optimum in weighted))
    return Estimate(drift, *interval(np.asarray(low), np.asarray(high)))


def _excess_by_size(curves: Sequence[Curve], fitted: Mapping[Size, FittedCurve]) -> dict[Size, Estimate]:
    """Return the excess at each size but the base; infinite where all runs of a size diverge."""
    base = next((fit for size, fit in fitted.items() if size.is_base), None)
    if base is None:
        return {}
    excess = {size: excess_of(base, fit) for size, fit in fitted.items() if not size.is_base}
    for each in curves:
        if each.size not in fitted and not any(each.n_missing):
            excess[each.size] = Estimate(math.inf, math.inf, math.inf)
    return dict(sorted(excess.items(), key=lambda entry: entry[0].scale))


def excess_of(base: FittedCurve, target: FittedCurve) -> Estimate:
    """Return L(target; base's optimum) - min L(target)."""
    points, drawn = target.points, target.drawn
    away = base.found.value - target.found.value
    excess = abs(float(_signed_excess(points, points.levels[None], target.found, away)[0]))
    low = _signed_excess(points, target.levels, drawn, base.drawn.low - drawn.high)
    high = _signed_excess(points, target.levels, drawn, base.drawn.high - drawn.low)
    ends = interval(low, high)
    sizes = (abs(ends[0]), abs(ends[1]))
    return Estimate(excess, 0.0 if ends[0] <= 0 <= ends[1] else min(sizes), max(sizes))


def _signed_excess(points: Points, levels: Floats, minima: Minima, away: Floats) -> Floats:
    """Return the rise of the loss `away` octaves [n] from the minima, with the sign of `away`.

    Between the neighbours of the best point the rise comes from the fitted polynomial, farther away from interpolation
    between points. It is infinite beyond a diverged point and beyond the grid.
    """
    at_best = points.x[minima.point]
    vertex = np.where(np.isnan(minima.vertex), 0.0, minima.vertex)
    place = at_best + vertex + away
    rise = np.full(len(away), math.inf)
    left, right = points.left[minima.point], points.right[minima.point]
    near = (place >= left) & (place <= right) & np.isfinite(minima.vertex)
    at = np.where(near, place - at_best, 0.0)
    by_fit = evaluate(minima.polynomial, at) - evaluate(minima.polynomial, vertex)
    rise[near] = by_fit[near]
    for row in np.flatnonzero(~near & np.isfinite(place)):
        rise[row] = points.interpolated(levels[row], float(place[row])) - minima.loss[row]
    return np.asarray(np.sign(away) * np.maximum(rise, 0.0))


def _decide(
    seen: Verdict, curves: Sequence[Curve], fitted: Mapping[Size, FittedCurve], limit: float
) -> tuple[Conclusion, str, tuple[Remedy, ...]]:
    """Return conclusion, reason and remedies for the numbers of a verdict, given the largest allowed drift.

    PASS: no optimum on the edge of the grid, and both intervals within their limits. FAIL: an interval entirely outside
    its limit. INCONCLUSIVE: everything else.
    """
    missing = sum(sum(each.n_missing) for each in curves)
    if missing:
        total = sum(len(each.losses) * each.n_seeds for each in curves)
        return "INCONCLUSIVE", f"{missing} of {total} runs have no result", (Remedy("runs", runs=missing),)
    if len(curves) < 2:
        return "INCONCLUSIVE", "the axis has no size beside the base", ()
    low, high = seen.drift.low, seen.drift.high
    is_within = seen.drift.is_within(limit)
    drift = f"the optimum moves by {seen.drift.value:+.2f} octaves per doubling (95%: {low:+.2f} to {high:+.2f}"
    excess = f"the base's optimum costs {seen.excess.value:.4f} nats more than the best (95%: {seen.excess.low:.4f} to "
    excess += f"{seen.excess.high:.4f}, allowed {seen.excess_limit:.4f})"
    if is_within is False:
        return "FAIL", f"{drift}), all of it beyond the {limit:g} that are allowed", ()
    if seen.excess.low > seen.excess_limit:
        lost = [f"{each.size.scale:g}" for each in curves if each.size not in seen.optima]
        return "FAIL", f"runs at {lost[0]} times the base diverge at every value" if lost else excess, ()
    sides = wider_grid(curves, seen.optima)
    on_edge = [f"{size.scale:g}" for size, optimum in seen.optima.items() if optimum.edge]
    if not any(size.is_base for size in seen.optima):
        return "INCONCLUSIVE", "runs of the base diverge at every value", sides
    if on_edge:
        where = f"the optimum at {' and '.join(on_edge)} times the base"
        return "INCONCLUSIVE", f"{where} lies on the edge of the grid, which is only a bound", sides
    if sides:
        return "INCONCLUSIVE", "an optimum is so close to the edge of the grid that it may lie beyond", sides
    if is_within and seen.excess.high <= seen.excess_limit:
        return "PASS", f"{drift}, allowed {limit:g}), and {excess}", ()
    if math.isnan(low) or math.isnan(high):
        remedies = narrower_interval(curves, fitted, 1.0)
        return "INCONCLUSIVE", "there is no estimate of the noise over seeds", remedies
    if math.isinf(high - low):
        reason = "taken together, the optima are so close to the edge of the grid that one may lie beyond"
        return "INCONCLUSIVE", reason, wider_grid(curves, seen.optima, is_open=True)
    # The factor by which the interval must shrink to leave the limit on one side.
    factor = (high - low) / 2 / max(abs(limit - abs(seen.drift.value)), 1e-9) if not is_within else 1.4
    reason = f"{drift}), partly beyond the {limit:g} that are allowed" if not is_within else f"{excess}: partly beyond"
    return "INCONCLUSIVE", reason, narrower_interval(curves, fitted, factor)
