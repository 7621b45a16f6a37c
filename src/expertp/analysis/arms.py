"""Verdicts of arms other than the study's own.

An arm that is re-tuned is judged by its own curves. An arm that is not is judged by its zero-shot loss minus the lowest
loss of the study's own arm at the same size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from expertp.analysis.curve_fit import DRAWS, Drawn, pooled_noise
from expertp.analysis.curves import Curve, curves
from expertp.analysis.judging import (
    INFINITE,
    conclude,
    diverged_runs,
    diverges,
    judge_curves,
    tail_of,
    tail_of_axis,
    tail_of_growth,
    tolerance_of,
)
from expertp.analysis.verdict import Judgement, SizeCost, Verdict
from expertp.study.cells import Arm, Size, swept_on
from expertp.study.spec import HP
from expertp.study.table import StudyTable
from expertp.util.statistics import UNKNOWN


def curves_of_arm(table: StudyTable, arm: Arm) -> dict[tuple[str, HP], tuple[Curve, ...]]:
    """Return the curves of an arm by axis and hyperparameter; empty where it is not swept."""
    return {
        (axis, hp): curves(table, axis, arm, hp) for axis in table.axes_of(arm) for hp in swept_on(table.study, axis)
    }


def judge_arm(table: StudyTable, arm: Arm, own: Mapping[str, Verdict]) -> list[Judgement]:
    """Return the verdicts of another arm: on each axis one per re-tuned hyperparameter, or one over zero-shot runs.

    Args:
        table: the study's results.
        arm: the arm.
        own: verdict of the study's own arm by axis, where there is one.
    """
    swept, made = curves_of_arm(table, arm), list[Judgement]()
    noise = pooled_noise([each for found in swept.values() for each in found])
    for axis in table.axes_of(arm):
        reference = own.get(axis)
        tolerances = {each.size: each.tolerance for each in reference.costs} if reference else None
        retuned = [
            judge_curves(found, table.study.verdict, noise, tolerances, tail_of(table.study, axis, hp))
            for (at, hp), found in swept.items()
            if at == axis and len(found) > 1 and any(each.size.is_base for each in found)
        ]
        made += retuned or [_judge_zero_shot(table, axis, arm, reference)]
    return made


def _judge_zero_shot(table: StudyTable, axis: str, arm: Arm, own: Verdict | None) -> Judgement:
    """Judge the zero-shot runs of an arm by the lowest losses of the study's own arm."""
    references = {size: _reference(table, axis, size, own) for size in table.sizes(axis)}
    base_size, base_loss = table.base(axis), references[table.base(axis)].loss
    gaps = {
        size: _gap(table.zero_shot_pairs(axis, size, arm, table.own), place) for place, size in enumerate(references)
    }
    behind = {size: None if gap is None else gap + references[size].cost for size, gap in gaps.items()}
    base, costs = behind[base_size], []
    tail = tail_of_axis(table.study, axis)
    strict = tail_of_growth(tail, len(references) - 1)
    for size, gap in gaps.items():
        gain = base_loss - references[size].loss
        tolerance = tolerance_of(table.study.verdict, gain)
        if size.is_base:
            continue
        if diverges(table.zero_shot(axis, size, arm)):
            costs.append(SizeCost(size, INFINITE, INFINITE, tolerance, gain))
        elif diverged := _diverged_runs(table, axis, size, arm):
            costs.append(SizeCost(size, UNKNOWN, UNKNOWN, tolerance, gain, diverged=diverged))
        elif gap is not None and (found := behind[size]) is not None and base is not None:
            growth = (found - base).estimate(strict)
            costs.append(SizeCost(size, found.estimate(tail), growth, tolerance, gain, gap=gap.estimate(tail)))
    numbers = Judgement(
        axis=axis,
        arm=arm,
        costs=tuple(costs),
        base_cost=base.estimate(tail) if base is not None else UNKNOWN,
        n_seeds=len(table.zero_shot(axis, base_size, arm)),
        tail=tail,
    )
    if table.study.verdict is None:
        return numbers
    if any(math.isnan(loss) for size in references for loss in table.zero_shot(axis, size, arm)):
        return replace(numbers, conclusion="UNDECIDED", reason="some zero-shot runs have no result")
    if diverged := _diverged_runs(table, axis, base_size, arm):
        return replace(numbers, conclusion="UNDECIDED", reason=f"{diverged} of the base itself diverge")
    conclusion, reason = conclude(numbers)
    return replace(numbers, conclusion=conclusion, reason=reason)


def _diverged_runs(table: StudyTable, axis: str, size: Size, arm: Arm) -> str:
    """Return how many zero-shot runs of an arm, or of the study's own, have diverged at a size; empty if none has."""
    losses = {each.name: table.zero_shot(axis, size, each) for each in (arm, table.own)}
    return next((f"{found} of {name}" for name, each in losses.items() if (found := diverged_runs(each))), "")


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


def _gap(pairs: Sequence[tuple[float, float]], seed: int) -> Drawn | None:
    """Return the zero-shot loss of an arm minus that of the study's own arm, paired by seed; None if unknown."""
    gaps = [theirs - ours for theirs, ours in pairs if math.isfinite(theirs - ours)]
    if not gaps:
        return None
    mean, n = float(np.mean(gaps)), len(gaps)
    if n < 2:
        return Drawn(mean, np.empty(0))
    error = float(np.std(gaps, ddof=1)) / math.sqrt(n)
    return Drawn(mean, mean + error * np.random.default_rng((seed, 1)).standard_t(n - 1, DRAWS))
