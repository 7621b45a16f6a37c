"""Findings that a grid decides: does the base's optimum hold along an axis?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from expertp.analysis.curves import Curve
from expertp.analysis.optimum import Interval
from expertp.analysis.transfer import AxisVerdict, judge_curves
from expertp.figures import curves
from expertp.figures.labels import HP_SHORT
from expertp.figures.save import Drawing, render
from expertp.paper.finding import Outcome, Readings, Shown, Verdict, verdict_of
from expertp.report.reading import Reading
from expertp.study import HP, VerdictSpec
from expertp.wording import with_interval

# What a verdict on one axis answers; any other decides nothing.
ANSWERS: Mapping[str | None, bool] = {"PASS": True, "FAIL": False}

# Reasons that are told in full.
FEW = 2
# Nats above the best of its size at which a run has failed, as one has that diverges.
FALLEN = 0.5


def transfer(study: str) -> Callable[[Readings], Shown]:
    """Return what shows a study's loss curves and says whether all its axes transfer."""

    def show(readings: Readings) -> Shown:
        reading = readings[study]
        return Shown((drawn(reading),), _outcome(reading.verdict.axes))

    return show


def drawn(reading: Reading) -> Drawing:
    """Draw the loss curves of a study."""
    return render(reading.study.name, curves.draw, curves.data(reading.table, reading.optima))


def no_transfer(study: str) -> Callable[[Readings], Shown]:
    """Return what shows a control of which the paper says that the optimum moves, or training becomes unstable."""

    def show(readings: Readings) -> Shown:
        reading = readings[study]
        (verdict,) = reading.verdict.axes
        lost, number = _lost_above(reading, verdict), describe_drift(verdict)
        if verdict.verdict == "FAIL":
            found: Verdict = "HOLDS"
            why = f"No transfer: {verdict.reason}."
        elif lost:
            found, number = "HOLDS", f"{number}; {lost} fail"
            fail = f"fail (diverge, or end {FALLEN} nats above the best of their size), and none of the base's"
            why = f"Stability is lost: {lost} {fail}. As to the optimum itself, {verdict.reason}."
        elif verdict.verdict == "PASS":
            found, why = "DOES NOT HOLD AT THIS SCALE", f"The optimum stays: {verdict.reason}."
        else:
            found, why = "INCONCLUSIVE", f"{verdict.reason}."
        return Shown((drawn(reading),), Outcome(found, number, why))

    return show


def same_transfer(study: str, reference: str) -> Callable[[Readings], Shown]:
    """Return what shows a study of which the paper says that its optima move as those of a reference do."""

    def show(readings: Readings) -> Shown:
        reading, allowed = readings[study], (readings[study].study.verdict or VerdictSpec()).drift
        by_curve = {(each.axis, each.hp): each for each in readings[reference].verdict.axes}
        rows: list[tuple[str, ...]] = [("axis", "of", f"drift of {study}", f"of {reference}", "difference")]
        told, answers = [], []
        for ours in reading.verdict.axes:
            theirs = by_curve[ours.axis, ours.hp]
            difference, ends = difference_of((ours.drift, ours.drift_ci), (theirs.drift, theirs.drift_ci))
            drifts = [with_interval(each.drift, each.drift_ci, "+.2f") for each in (ours, theirs)]
            what = (ours.axis, HP_SHORT[ours.hp])
            rows.append((*what, *drifts, with_interval(difference, ends, "+.2f")))
            told.append(f"{', '.join(what)} {with_interval(difference, ends, '+.2f')}")
            answers.append(_is_within(ends, allowed))
        number = f"drift of the optimum beside that of {reference}, octaves a doubling: {'; '.join(told)}"
        why = f"The whole interval of the difference must lie within {allowed:g}, the drift that a study allows."
        return Shown((drawn(reading),), Outcome(verdict_of(answers), number, why, tuple(rows)))

    return show


def difference_of(ours: tuple[float, Interval], theirs: tuple[float, Interval]) -> tuple[float, Interval]:
    """Return the difference of two numbers that are known by themselves, and its interval from theirs.

    Each end takes the sides of both intervals that lie its way, and adds them in quadrature (Zou and Donner 2008).

    >>> difference_of((0.5, (0.1, 0.6)), (0.25, (0.0, 0.55)))
    (0.25, (-0.25, 0.5192582403567252))
    """
    (a, (a_low, a_high)), (b, (b_low, b_high)) = ours, theirs
    return a - b, (a - b - math.hypot(a - a_low, b_high - b), a - b + math.hypot(a_high - a, b - b_low))


def _is_within(ends: Interval, allowed: float) -> bool | None:
    """Answer whether a number is at most `allowed` from zero; None where its interval says both, or is unknown."""
    low, high = ends
    if -allowed <= low and high <= allowed:
        return True
    return False if low > allowed or high < -allowed else None


def longer_horizon(short: str, long: str) -> Callable[[Readings], Shown]:
    """Return what shows a larger model on a longer horizon, judged by where the base's short optimum lies in it."""

    def show(readings: Readings) -> Shown:
        (axis,) = readings[long].study.axis_names
        largest, shifts, verdicts, drawn_beside = max(readings[long].study.models(axis)), [], [], {}
        for hp in readings[long].study.sweep(axis):
            both = _across(readings[short], readings[long], axis, hp)
            found = judge_curves({curve.scale: curve for curve in both.values()}, readings[long].study.verdict)
            verdicts.append(found)
            drawn_beside[hp] = {label: (curve, found.optima.get(curve.scale)) for label, curve in both.items()}
            if {1.0, largest} <= found.optima.keys():
                shift = found.optima[largest].log2_value - found.optima[1.0].log2_value
                shifts.append(f"{HP_SHORT[hp]} {shift:+.2f}")
        outcome = _outcome(tuple(verdicts))
        moved = ", ".join(shifts) or "unknown"
        number = f"optimum of {axis} at the long horizon beside the base's at the short one, octaves: {moved}"
        drawing = render(long, curves.draw, curves.named_data(axis, drawn_beside))
        return Shown((drawing,), replace(outcome, number=f"{number}; {outcome.number}"))

    return show


def _across(short: Reading, long: Reading, axis: str, hp: HP) -> dict[str, Curve]:
    """Return the curves of the base on the short horizon and of the largest model on the long one, by their names."""
    largest = max(long.study.models(axis))
    base = short.table.curve(short.study.axis_names[0], 1.0, short.study.hps.rules, hp)
    target = long.table.curve(axis, largest, long.study.hps.rules, hp)
    assert base is not None, f"{short.study.name} sweeps {hp}"
    assert target is not None, f"{long.study.name} sweeps {hp}"
    return {
        f"base, {short.study.train.steps} steps": replace(base, axis=axis),
        f"{axis}, {long.study.train.steps} steps": target,
    }


def describe_drift(verdict: AxisVerdict) -> str:
    """Say how far an optimum moves, with its interval."""
    drift = f"{with_interval(verdict.drift, verdict.drift_ci, '+.2f')} octaves a doubling"
    return f"{verdict.axis}, {HP_SHORT[verdict.hp]}: {'unknown' if math.isnan(verdict.drift) else drift}"


def _outcome(verdicts: tuple[AxisVerdict, ...]) -> Outcome:
    counts = Counter(each.verdict for each in verdicts)
    told = ", ".join(f"{counts[each]} {each}" for each in ("PASS", "INCONCLUSIVE", "FAIL") if counts[each])
    known = [each for each in verdicts if not math.isnan(each.drift)]
    worst = max(known, key=lambda each: abs(each.drift), default=None)
    several = f"{len(verdicts)} curves: {told}"
    number = f"{several}; most drift {describe_drift(worst)}" if worst else several
    if len(verdicts) == 1:
        number = describe_drift(verdicts[0])
    shown = [each for each in verdicts if each.verdict == "FAIL"] or [
        each for each in verdicts if each.verdict != "PASS"
    ]
    why = " ".join(f"{each.axis}, {HP_SHORT[each.hp]}: {each.reason}." for each in shown[:FEW])
    if len(shown) > FEW:
        why += f" So with {len(shown) - FEW} more, in the table."
    found = verdict_of(ANSWERS.get(each.verdict) for each in verdicts)
    return Outcome(found, number, why or "Every interval lies within its threshold.", _table(verdicts))


def _table(verdicts: Sequence[AxisVerdict]) -> tuple[tuple[str, ...], ...]:
    """Return one row per curve, under what columns are."""
    rows = [
        (
            each.axis,
            HP_SHORT[each.hp],
            each.verdict or "not judged",
            with_interval(each.drift, each.drift_ci, "+.2f"),
            with_interval(each.excess, each.excess_ci, ".4f"),
        )
        for each in verdicts
    ]
    return ("axis", "of", "verdict", "drift, octaves a doubling", "excess, nats"), *rows


def _lost_above(reading: Reading, verdict: AxisVerdict) -> str:
    """Say where half of a size's runs fail at a learning rate, from the base's on, at which none of the base does."""
    curves_by_scale = reading.table.curves(verdict.axis, reading.study.hps.rules, verdict.hp)
    failed, told = {scale: _failed(curve) for scale, curve in curves_by_scale.items()}, []
    for scale, curve in curves_by_scale.items():
        half = len(curve.seeds) / 2
        lost = {value: n for value, n in failed[scale].items() if n >= half and not failed[1.0][value]}
        if lost:
            where = f"at {scale:g} times the base and {2 ** (min(lost) - curve.centre):g} times its learning rate"
            told.append(f"{where} {lost[min(lost)]} of {len(curve.seeds)} seeds")
    return ", ".join(told)


def _failed(curve: Curve) -> dict[float, int]:
    """Return how many runs diverge, or end far above the best of their size, at each value from the base's on."""
    best = curve.medians[curve.best_place]
    return {
        value: sum(loss == math.inf or loss > best + FALLEN for loss in cell)
        for value, cell in zip(curve.log2_values, curve.losses, strict=True)
        if value >= curve.centre
    }
