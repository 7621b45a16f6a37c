"""Findings that training curves decide: collapse onto the base, balanced loads, races against dense models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from expertp.errors import RunError
from expertp.figures import balance, collapse
from expertp.figures.paper import race
from expertp.figures.save import Drawing, render
from expertp.paper.finding import Outcome, Readings, Shown, Verdict
from expertp.report.reading import Reading

# How far a larger model's loss may lie from the base's until half of the loss drop is made.
COLLAPSED = 0.02
# The axes of the paper's Finding 1.2; others are drawn, and not judged.
COLLAPSING = ("width", "experts", "alpha")
# Largest deviation of an expert's load from kappa, late in training, that counts as balanced; a share of kappa. That of
# an expert without a token is 1.
BALANCED = 0.5
DENSE = "dense, tuned"


def collapses(studies: Sequence[str]) -> Callable[[Readings], Shown]:
    """Return what shows training curves of several studies over their bases."""

    def show(readings: Readings) -> Shown:
        drawings: list[Drawing] = []
        worst: dict[str, float] = {}
        others: dict[str, float] = {}
        for name in studies:
            shown = collapse.data(readings[name].study, readings[name].study.hps.rules, readings[name].records)
            drawings.append(render(f"collapse-{name}", collapse.draw, shown))
            for axis, deviation in _deviations(shown).items():
                (worst if axis in COLLAPSING else others)[f"{name}, {axis}"] = deviation
        place = max(worst, key=lambda each: worst[each])
        found: Verdict = "HOLDS" if worst[place] <= COLLAPSED else "DOES NOT HOLD AT THIS SCALE"
        number = f"largest relative difference until half of the drop: {100 * worst[place]:.2g}% ({place})"
        off = ", ".join(f"{name} {100 * each:.2g}%" for name, each in worst.items() if each > COLLAPSED)
        why = f"Beyond {COLLAPSED:.0%}: {off}." if off else f"All {len(worst)} axes stay within {COLLAPSED:.0%}."
        if others:
            beside = ", ".join(f"{name} {100 * each:.2g}%" for name, each in others.items())
            why += f" Not part of the claim: {beside}."
        return Shown(tuple(drawings), Outcome(found, number, why))

    return show


def _deviations(shown: collapse.CollapseData) -> dict[str, float]:
    return {each.axis: each.collapse.max_deviation_until_half for each in shown.axes if each.collapse}


def fan_in(readings: Readings) -> Shown:
    """Show that a fan-in init of the down-projections leaves the collapse that the rule keeps."""
    reading = readings["fan-in-down"]
    study, drawings, found = reading.study, [], {}
    for rules in (study.hps.rules, "fan_in_down"):
        shown = collapse.data(study, rules, reading.records)
        drawings.append(render(f"collapse-{rules}", collapse.draw, shown))
        found[rules] = _deviations(shown)["alpha"]
    ours, theirs = found[study.hps.rules], found["fan_in_down"]
    verdict: Verdict = "INCONCLUSIVE"
    if ours <= COLLAPSED:
        verdict = "HOLDS" if theirs > COLLAPSED else "DOES NOT HOLD AT THIS SCALE"
    both = f"{100 * ours:.2g}% by the rule, {100 * theirs:.2g}% by fan-in"
    number = f"largest relative difference until half of the drop: {both}"
    return Shown(tuple(drawings), Outcome(verdict, number, f"The bound is {COLLAPSED:.0%}, the same for both."))


def imbalance(readings: Readings) -> Shown:
    """Show the loads of all scales and of a longer horizon."""
    drawings, late, cut_short, chance = [], {}, [], 0.0
    for name, reading in readings.items():
        shown = balance.data(reading.study, reading.records)
        drawings.append(render(f"balance-{name}", balance.draw, shown))
        kappa = float(reading.study.base.kappa)
        chance = max(chance, math.sqrt((1 - kappa) / (kappa * reading.study.train.batch_tokens)))
        for line in shown.lines:
            label, deviation = f"{name}, {line.axis} {line.label}", line.load.late(reading.study.train.steps)
            if math.isnan(deviation):
                cut_short.append(label)
            else:
                late[label] = deviation / kappa
    why = f"By chance alone an expert's load has an s.d. of {chance:.1%} of kappa, were a batch's tokens independent."
    if cut_short:
        why += f" A run diverges, and late loads are not known: {'; '.join(cut_short)}."
    if not late:
        return Shown(tuple(drawings), Outcome("INCONCLUSIVE", "late loads are unknown", why))
    place = max(late, key=lambda each: late[each])
    found: Verdict = "INCONCLUSIVE" if cut_short else "HOLDS"
    if late[place] > BALANCED:
        found = "DOES NOT HOLD AT THIS SCALE"
    middle = float(np.median(list(late.values())))
    number = f"late max |Load - kappa| over kappa: median {middle:.2f}, largest {late[place]:.2f} ({place})"
    return Shown(tuple(drawings), Outcome(found, number, why))


def races(moe: Mapping[str, Sequence[str]], dense: str) -> Callable[[Readings], Shown]:
    """Return what shows MoE models with transferred hyperparameters beside a dense model that was tuned itself.

    Args:
        moe: study -> its joint scalings, each of one model.
        dense: the study of the dense baseline, which sweeps its own learning rate.
    """

    def show(readings: Readings) -> Shown:
        runners, diverged = [], set()
        for study, names in moe.items():
            reading = readings[study]
            rules = reading.study.hps.rules
            for name in names:
                scale, model = max(reading.study.models(name).items())
                runners.append(race.runner(f"MoE {name}", reading.records(model, rules), True))
                if math.inf in reading.table.zero_shot(name, scale, rules):
                    diverged.add(f"MoE {name}")
        records, losses = _best_dense(readings[dense])
        baseline = race.runner(DENSE, records, False)
        known = [each for each in runners if each is not None]
        if baseline is None or len(known) < len(runners):
            raise RunError(f"{dense} or {', '.join(moe)}: a run has no records; nothing can be compared")
        # Where a model has diverged, its curve ends early, and low as it may be there, it has not won.
        won = {
            each.label: gain
            for each in known
            if each.label not in diverged and each.final <= baseline.final and (gain := race.speedup(each, baseline))
        }
        number = "; ".join(
            f"{label}: {gain[0]:.1f}x fewer tokens, {gain[1]:.1f}x the speed" for label, gain in won.items()
        )
        verdict: Verdict = "HOLDS" if len(won) == len(known) else "DOES NOT HOLD AT THIS SCALE"
        if math.inf in losses:
            diverged.add(DENSE)
            verdict, number = "INCONCLUSIVE", "the dense model diverges at every learning rate"
        ends = ", ".join(
            f"{each.label} {'diverges' if each.label in diverged else f'{each.final:.3f}'}"
            for each in (*known, baseline)
        )
        drawing = render("race", race.draw, race.data([*known, baseline]))
        return Shown((drawing,), Outcome(verdict, number or "none ends below the dense loss", f"Final loss: {ends}."))

    return show


def _best_dense(reading: Reading) -> tuple[Mapping[int, Sequence[Mapping[str, Any]]], tuple[float, ...]]:
    """Return records and losses, by seed, of the learning rate with the lowest median loss."""
    study, axis = reading.study, reading.study.axis_names[0]
    curve = reading.table.curve(axis, 1.0, study.hps.rules, "log2_lr")
    assert curve is not None, f"{study.name} sweeps its learning rate"
    place = curve.best_place
    return reading.records_of(study.curve(axis, study.base, study.hps.rules, "log2_lr")[place]), curve.losses[place]
