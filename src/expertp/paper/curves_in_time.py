"""Findings that training curves decide: collapse onto the base, balanced loads, races against dense models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from expertp.analysis.paired import Change, paired
from expertp.errors import RunError
from expertp.figures import balance, collapse
from expertp.figures.paper import race
from expertp.figures.save import Drawing, render
from expertp.paper.finding import Outcome, Readings, Shown, Verdict, is_positive, verdict_of
from expertp.report.reading import Reading

# How far a larger model's loss may lie from the base's until half of the loss drop is made.
COLLAPSED = 0.02
# The axes of the paper's Finding 1.2; others are drawn, and not judged.
COLLAPSING = ("width", "experts", "alpha")
# Largest deviation of an expert's load from kappa, late in training, that counts as balanced; a share of kappa. That of
# an expert without a token is 1.
BALANCED = 0.5
DENSE = "dense, tuned"
# Two final losses that differ by less are alike, in nats.
ALIKE = 0.02


def collapses(studies: Sequence[str]) -> Callable[[Readings], Shown]:
    """Return what shows training curves of several studies over their bases."""

    def show(readings: Readings) -> Shown:
        drawings: list[Drawing] = []
        worst: dict[str, float] = {}
        others: dict[str, float] = {}
        for name in studies:
            shown = collapse.data(readings[name].study, readings[name].study.hps.rules, readings[name].records)
            drawings.append(render(f"collapse-{name}", collapse.draw, shown))
            for axis, deviation in _deviations(readings[name], shown).items():
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


def _deviations(reading: Reading, shown: collapse.CollapseData) -> dict[str, float]:
    found = {each.axis: each.collapse.max_deviation_until_half for each in shown.axes if each.collapse}
    if len(found) < len(shown.axes):
        raise RunError(f"{reading.study.name}: not all runs have records; their curves cannot be compared")
    return found


def fan_in(readings: Readings) -> Shown:
    """Show that a fan-in init of the down-projections leaves the collapse that the rule keeps."""
    reading = readings["fan-in-down"]
    study, drawings, found = reading.study, [], {}
    for rules in (study.hps.rules, "fan_in_down"):
        shown = collapse.data(study, rules, reading.records)
        drawings.append(render(f"collapse-{rules}", collapse.draw, shown))
        found[rules] = _deviations(reading, shown)["alpha"]
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


Records = Mapping[int, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Contestant:
    """A model in a race: its curve, and its final losses by seed, inf where one has diverged."""

    runner: race.Runner
    losses: tuple[float, ...]

    @property
    def has_diverged(self) -> bool:
        """Whether any seed has; its curve ends early then, and low as it may be there, it has not won."""
        return math.inf in self.losses

    def __str__(self) -> str:
        return f"{self.runner.label} {'diverges' if self.has_diverged else f'{np.mean(self.losses):.3f}'}"


def races(
    moe: Mapping[str, Sequence[str]],
    dense: str,
    ahead: Sequence[tuple[str, str]] = (),
    alike: Sequence[tuple[str, str]] = (),
) -> Callable[[Readings], Shown]:
    """Return what shows MoE models with transferred hyperparameters beside a dense model that was tuned itself.

    Args:
        moe: study -> its joint scalings, each of one model.
        dense: the study of the dense baseline, which sweeps its own learning rate.
        ahead: pairs of scalings of which the first is said to end below the second.
        alike: pairs that are said to end alike.
    """

    def show(readings: Readings) -> Shown:
        known = {name: _scaled(readings[study], name) for study, names in moe.items() for name in names}
        baseline, note = _best_dense(readings[dense])
        drawing = render("race", race.draw, race.data([*(each.runner for each in known.values()), baseline.runner]))
        ends = f"Final loss: {', '.join(map(str, (*known.values(), baseline)))}.{note}"
        if baseline.has_diverged:
            number = "the dense model diverges at every learning rate"
            return Shown((drawing,), Outcome("INCONCLUSIVE", number, ends))
        told, answers = [], []
        for each in known.values():
            gap = paired(baseline.losses, each.losses)
            answers.append(False if each.has_diverged else is_positive(gap))
            faster = race.speedup(each.runner, baseline.runner) if gap.mean >= 0 else None
            by = f" ({faster[0]:.1f}x fewer tokens, {faster[1]:.1f}x the speed)" if faster else ""
            told.append(f"{DENSE} minus {each.runner.label} {gap}{by}")
        for first, second in ahead:
            gap = paired(known[second].losses, known[first].losses)
            answers.append(is_positive(gap))
            told.append(f"{second} minus {first} {gap}")
        for first, second in alike:
            gap = paired(known[first].losses, known[second].losses)
            answers.append(_is_alike(gap))
            told.append(f"{first} minus {second} {gap}, where {ALIKE} is alike")
        return Shown((drawing,), Outcome(verdict_of(answers), "; ".join(told), ends))

    return show


def _scaled(reading: Reading, name: str) -> Contestant:
    """Return the one model of a joint scaling."""
    rules = reading.study.hps.rules
    scale, model = max(reading.study.models(name).items())
    return _contestant(
        reading, f"MoE {name}", reading.records(model, rules), reading.table.zero_shot(name, scale, rules)
    )


def _best_dense(reading: Reading) -> tuple[Contestant, str]:
    """Return the dense model at the learning rate with the lowest median loss, and a note where that is an edge."""
    study, axis = reading.study, reading.study.axis_names[0]
    curve = reading.table.curve(axis, 1.0, study.hps.rules, "log2_lr")
    assert curve is not None, f"{study.name} sweeps its learning rate"
    place = curve.best_place
    runs = study.curve(axis, study.base, study.hps.rules, "log2_lr")[place]
    edge = place in (0, len(curve.losses) - 1)
    note = f" The best dense learning rate, 2^{curve.log2_values[place]:g}, is at the edge of its grid." if edge else ""
    return _contestant(reading, DENSE, reading.records_of(runs), curve.losses[place]), note


def _contestant(reading: Reading, label: str, records: Records, losses: tuple[float, ...]) -> Contestant:
    runner = race.runner(label, records, is_ours=label != DENSE)
    if runner is None:
        raise RunError(f"{reading.study.name}: the runs of {label} have no records; nothing can be compared")
    return Contestant(runner, losses)


def _is_alike(gap: Change) -> bool | None:
    """Answer whether two losses are alike, given their difference; None where chance decides."""
    if abs(gap.mean) + gap.half_width <= ALIKE:
        return True
    return False if abs(gap.mean) - gap.half_width > ALIKE else None
