"""Does the optimum of the base hold at larger sizes? Drift, zero-shot excess loss, and the verdict of each axis.

drift   slope of the optimum, in octaves, over log2 of the scale
excess  L(target; base's optimum) - min L(target), on the target's fitted curve

All scales are drawn together, so both intervals carry the noise of the whole chain. The excess cannot be negative, and
percentiles of a quantity at its bound are wrong there: the interval is taken of the excess with the sign of the
distance between the two optima, and folded afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from expertp.analysis.curves import Curve, StudyTable
from expertp.analysis.needs import Need, missing_runs, to_be_surer, wider_grid
from expertp.analysis.optimum import FittedCurve, Interval, Noise, Optimum, fit_curve, interval, pooled_noise
from expertp.analysis.valley import Cells, Floats, Located, evaluate
from expertp.study import HP, StudySpec, VerdictSpec
from expertp.study_store import Result

Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE"]


@dataclass(frozen=True, eq=False)
class AxisVerdict:
    """What one grid shows along one axis.

    Args:
        axis: the axis.
        hp: the hyperparameter.
        verdict: None where the study asks for none (`verdict: null`).
        reason: why, one sentence with numbers.
        needs: what would settle an INCONCLUSIVE, best first.
        drift: octaves of the optimum per doubling of the scale; nan where it cannot be told.
        drift_ci: its 95% interval; infinite on a side where an optimum is only a bound.
        excess: zero-shot excess loss in nats at the size that decides, the worst; inf where that diverges.
        excess_ci: its 95% interval.
        excess_limit: what the study allows, nats.
        edge: whether an optimum lies on the edge of the grid.
        n_seeds: seeds of the curves.
        noise: that of a run's loss, pooled over the curves.
        optima: the optimum of each scale; none where all runs have diverged or are missing.
        excess_at: (excess, low, high) of each scale but the base's.
    """

    axis: str
    hp: HP
    verdict: Verdict | None
    reason: str
    needs: tuple[Need, ...]
    drift: float
    drift_ci: Interval
    excess: float
    excess_ci: Interval
    excess_limit: float
    edge: bool
    n_seeds: int
    noise: Noise
    optima: Mapping[float, Optimum]
    excess_at: Mapping[float, tuple[float, float, float]]


@dataclass(frozen=True, eq=False)
class StudyVerdict:
    """The verdicts of a study, and how many of its runs, contrasts included, have no loss to judge by."""

    study: str
    axes: tuple[AxisVerdict, ...]
    diverged: int
    failed: int
    missing: int

    def to_tree(self) -> dict[str, Any]:
        """Return the tree of verdict.json; what is not finite becomes null."""
        return {
            "study": self.study,
            "axes": [_axis_tree(each) for each in self.axes],
            "diverged": self.diverged,
            "failed": self.failed,
            "missing": self.missing,
        }


def _axis_tree(each: AxisVerdict) -> dict[str, Any]:
    return {
        "axis": each.axis,
        "hp": each.hp,
        "verdict": each.verdict,
        "reason": each.reason,
        "drift_octaves_per_doubling": _or_null(each.drift),
        "ci": [_or_null(end) for end in each.drift_ci],
        "excess": _or_null(each.excess),
        "excess_ci": [_or_null(end) for end in each.excess_ci],
        "edge": each.edge,
        "n_seeds": each.n_seeds,
        "needs": [
            {"kind": need.kind, "values": list(need.values), "seeds": list(need.seeds), "text": need.text}
            for need in each.needs
        ],
    }


def _or_null(value: float) -> float | None:
    return value if math.isfinite(value) else None


def judge(study: StudySpec, results: Sequence[Result]) -> StudyVerdict:
    """Return the verdicts over all axes and the grids swept there, with the study's own rule set."""
    table, statuses = StudyTable(study, results), [result.status for result in results]
    return StudyVerdict(
        study=study.name,
        axes=tuple(judge_axis(study, table, axis, hp) for axis in study.axis_names for hp in study.sweep(axis)),
        diverged=statuses.count("diverged"),
        failed=statuses.count("failed"),
        missing=statuses.count("missing") + statuses.count("unfinished"),
    )


def judge_axis(study: StudySpec, table: StudyTable, axis: str, hp: HP) -> AxisVerdict:
    """Return the verdict of one grid along one axis."""
    return judge_curves(table.curves(axis, study.hps.rules, hp), study.verdict)


def judge_curves(curves: Mapping[float, Curve], rule: VerdictSpec | None) -> AxisVerdict:
    """Return the verdict over the curves of an axis by scale; `rule` None means numbers without a verdict."""
    limits, base = rule or VerdictSpec(), curves[1.0]
    noise = pooled_noise(list(curves.values()))
    fits = {scale: fit_curve(curve, noise, seed=place) for place, (scale, curve) in enumerate(curves.items())}
    fitted = {scale: fit for scale, fit in fits.items() if fit is not None}
    optima = {scale: fit.optimum for scale, fit in fitted.items()}
    drift, drift_ci = drift_of(optima)
    excess_at = _excess_by_scale(curves, fitted)
    seed_sd = noise.seed_sd if math.isfinite(noise.seed_sd) else 0.0
    limit = max(limits.excess_nats, limits.excess_sds * seed_sd)
    # The size that decides: one that is surely too much, else the one that could be the most.
    worst = max(excess_at.values(), key=lambda each: (each[1] > limit, each[2]), default=(math.nan,) * 3)
    evidence = _Evidence(
        curves=curves,
        fitted=fitted,
        optima=optima,
        drift=drift,
        drift_ci=drift_ci,
        drift_limit=limits.drift,
        excess=worst[0],
        excess_ci=(worst[1], worst[2]),
        excess_limit=limit,
    )
    none = (None, "the study asks for no verdict (verdict: null)", ())
    verdict, reason, needs = none if rule is None else _decide(evidence)
    return AxisVerdict(
        axis=base.axis,
        hp=base.hp,
        verdict=verdict,
        reason=reason,
        needs=needs,
        drift=drift,
        drift_ci=drift_ci,
        excess=worst[0],
        excess_ci=(worst[1], worst[2]),
        excess_limit=limit,
        edge=any(optimum.edge for optimum in optima.values()),
        n_seeds=base.n_seeds,
        noise=noise,
        optima=optima,
        excess_at=excess_at,
    )


def drift_of(optima: Mapping[float, Optimum]) -> tuple[float, Interval]:
    """Return the slope of optima over log2 of their scale, and its interval; nan with fewer than two sizes."""
    if len(optima) < 2:
        return math.nan, (math.nan, math.nan)
    octaves = np.log2(list(optima))
    weights = (octaves - octaves.mean()) / ((octaves - octaves.mean()) ** 2).sum()
    # A size in the very middle has no weight, and 0 times an infinite bound is not a number.
    weighted = [(w, optimum) for w, optimum in zip(weights, optima.values(), strict=True) if abs(w) > 1e-9]
    low = sum(w * (optimum.draws_low if w > 0 else optimum.draws_high) for w, optimum in weighted)
    high = sum(w * (optimum.draws_high if w > 0 else optimum.draws_low) for w, optimum in weighted)
    drift = float(sum(w * optimum.log2_value for w, optimum in weighted))
    return drift, interval(np.asarray(low), np.asarray(high))


def _excess_by_scale(
    curves: Mapping[float, Curve], fitted: Mapping[float, FittedCurve]
) -> dict[float, tuple[float, float, float]]:
    """Return the excess and its interval at each size but the base; infinite where all runs of a size diverge."""
    if 1.0 not in fitted:
        return {}
    excess = {scale: excess_of(fitted[1.0], fit) for scale, fit in fitted.items() if scale != 1.0}
    for scale, curve in curves.items():
        if scale not in fitted and not any(curve.n_missing):
            excess[scale] = (math.inf, math.inf, math.inf)
    return dict(sorted(excess.items()))


def excess_of(base: FittedCurve, target: FittedCurve) -> tuple[float, float, float]:
    """Return L(target; base's optimum) - min L(target) and the two ends of its interval."""
    cells, drawn = target.cells, target.drawn
    away = base.found.value - target.found.value
    excess = abs(float(_signed_excess(cells, cells.levels[None], target.found, away)[0]))
    low = _signed_excess(cells, target.levels, drawn, base.drawn.low - drawn.high)
    high = _signed_excess(cells, target.levels, drawn, base.drawn.high - drawn.low)
    ends = interval(low, high)
    sizes = (abs(ends[0]), abs(ends[1]))
    return excess, 0.0 if ends[0] <= 0 <= ends[1] else min(sizes), max(sizes)


def _signed_excess(cells: Cells, levels: Floats, minima: Located, away: Floats) -> Floats:
    """Return by how much the loss rises `away` octaves [n] from the minima, with the sign of `away`.

    Between the cells next to the best one the fitted polynomial tells, farther away straight lines between cells, and
    behind a diverged cell or beyond the grid nothing: there it is infinite.
    """
    at_best = cells.x[minima.cell]
    vertex = np.where(np.isnan(minima.vertex), 0.0, minima.vertex)
    place = at_best + vertex + away
    rise = np.full(len(away), math.inf)
    left, right = cells.left[minima.cell], cells.right[minima.cell]
    near = (place >= left) & (place <= right) & np.isfinite(minima.vertex)
    at = np.where(near, place - at_best, 0.0)
    by_fit = evaluate(minima.polynomial, at) - evaluate(minima.polynomial, vertex)
    rise[near] = by_fit[near]
    for row in np.flatnonzero(~near & np.isfinite(place)):
        rise[row] = cells.interpolated(levels[row], float(place[row])) - minima.loss[row]
    return np.asarray(np.sign(away) * np.maximum(rise, 0.0))


@dataclass(frozen=True, eq=False)
class _Evidence:
    """What a verdict is made of."""

    curves: Mapping[float, Curve]
    fitted: Mapping[float, FittedCurve]
    optima: Mapping[float, Optimum]
    drift: float
    drift_ci: Interval
    drift_limit: float
    excess: float
    excess_ci: Interval
    excess_limit: float


def _decide(seen: _Evidence) -> tuple[Verdict, str, tuple[Need, ...]]:
    """Return verdict, reason and needs.

    PASS: no optimum on the edge, the drift's whole interval within its limit, the excess's upper end within its own.
    FAIL: an interval wholly outside its limit. INCONCLUSIVE: all else.
    """
    curves = list(seen.curves.values())
    missing = sum(sum(curve.n_missing) for curve in curves)
    if missing:
        total = sum(len(curve.losses) * curve.n_seeds for curve in curves)
        return "INCONCLUSIVE", f"{missing} of {total} runs have no result", (missing_runs(missing),)
    if len(curves) < 2:
        return "INCONCLUSIVE", "the axis has no size beside the base", ()
    (low, high), limit = seen.drift_ci, seen.drift_limit
    drift = f"the optimum moves by {seen.drift:+.2f} octaves per doubling (95%: {low:+.2f} to {high:+.2f}"
    excess = f"the base's optimum costs {seen.excess:.4f} nats more than the best (95%: {seen.excess_ci[0]:.4f} to "
    excess += f"{seen.excess_ci[1]:.4f}, allowed {seen.excess_limit:.4f})"
    if low > limit or high < -limit:
        return "FAIL", f"{drift}), all of it beyond the {limit:g} that are allowed", ()
    if seen.excess_ci[0] > seen.excess_limit:
        lost = [f"{scale:g}" for scale in seen.curves if scale not in seen.optima]
        return "FAIL", f"runs at {lost[0]} times the base diverge at every value" if lost else excess, ()
    sides = wider_grid(curves, seen.optima)
    on_edge = [f"{scale:g}" for scale, optimum in seen.optima.items() if optimum.edge]
    if 1.0 not in seen.optima:
        return "INCONCLUSIVE", "runs of the base diverge at every value", sides
    if on_edge:
        where = f"the optimum at {' and '.join(on_edge)} times the base"
        return "INCONCLUSIVE", f"{where} lies on the edge of the grid, which is only a bound", sides
    if sides:
        return "INCONCLUSIVE", "an optimum is so close to the edge of the grid that it may lie beyond", sides
    within = -limit <= low and high <= limit
    if within and seen.excess_ci[1] <= seen.excess_limit:
        return "PASS", f"{drift}, allowed {limit:g}), and {excess}", ()
    if math.isnan(low) or math.isnan(high):
        return "INCONCLUSIVE", "there is no estimate of the noise over seeds", to_be_surer(curves, seen.fitted, 1.0)
    if math.isinf(high - low):
        reason = "taken together, the optima are so close to the edge of the grid that one may lie beyond"
        return "INCONCLUSIVE", reason, wider_grid(curves, seen.optima, is_open=True)
    # The interval must become so many times narrower to leave the limit on one side.
    narrower = (high - low) / 2 / max(abs(limit - abs(seen.drift)), 1e-9) if not within else 1.4
    reason = f"{drift}), partly beyond the {limit:g} that are allowed" if not within else f"{excess}: partly beyond"
    return "INCONCLUSIVE", reason, to_be_surer(curves, seen.fitted, narrower)
