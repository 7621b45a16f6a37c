"""Findings that training curves decide: collapse onto the base, balanced loads, races against dense models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from expertp.analysis.collapse import FAR_SDS, Collapse
from expertp.analysis.paired import Change, paired
from expertp.errors import RunError
from expertp.figures import balance, collapse
from expertp.figures.labels import HP_SHORT
from expertp.figures.paper import race
from expertp.figures.save import Drawing, render
from expertp.paper.finding import BALANCED, Outcome, Readings, Shown, Verdict, is_positive, verdict_of
from expertp.report.reading import Reading, Record
from expertp.spec import ModelSpec, RuleSetName, RunSpec
from expertp.wording import describe

# How far a larger model's loss may lie from the base's until half of the loss drop is made.
COLLAPSED = 0.02
# The axes of the paper's Finding 1.2; others are drawn, and not judged.
COLLAPSING = ("width", "experts", "alpha")
PICTURE = f"In the pictures, {collapse.MARKS}."
DENSE = "dense, tuned"
FAN_IN: RuleSetName = "fan_in_down"
# Two final losses that differ by less are alike, in nats.
ALIKE = 0.02
# By seed.
Records = Mapping[int, Sequence[Record]]


def collapses(studies: Sequence[str]) -> Callable[[Readings], Shown]:
    """Return what shows training curves of several studies over their bases."""

    def show(readings: Readings) -> Shown:
        drawings: list[Drawing] = []
        answers: list[bool | None] = []
        worst: dict[str, float] = {}
        others: dict[str, float] = {}
        for name in studies:
            study = readings[name].study
            shown = collapse.data(study, study.hps.rules, _all_records(readings[name]))
            drawings.append(render(f"collapse-{name}", collapse.draw, shown))
            for axis, found in _collapses_by_axis(shown).items():
                (worst if axis in COLLAPSING else others)[f"{name}, {axis}"] = found.max_deviation_until_half
                answers += [_is_kept(found)] if axis in COLLAPSING else []
        place = max(worst, key=lambda each: worst[each])
        number = f"largest relative difference until half of the drop: {100 * worst[place]:.2g}% ({place})"
        off = ", ".join(f"{name} {100 * each:.2g}%" for name, each in worst.items() if each > COLLAPSED)
        why = f"All {len(worst)} axes stay within {COLLAPSED:.0%}."
        if off:
            why = (
                f"Beyond {COLLAPSED:.0%}: {off}. It counts where {FAR_SDS:g} s.d. of the base's seeds are left as well."
            )
        if others:
            beside = ", ".join(f"{name} {100 * each:.2g}%" for name, each in others.items())
            why += f" Not part of the claim: {beside}."
        return Shown(tuple(drawings), Outcome(verdict_of(answers), number, f"{why} {PICTURE}"))

    return show


def _collapses_by_axis(shown: collapse.CollapseData) -> dict[str, Collapse]:
    return {each.axis: each.collapse for each in shown.axes if each.collapse}


def _all_records(reading: Reading) -> collapse.RecordsOf:
    """Return what gives the records of a model, and refuses one of which a seed has none."""

    def records(model: ModelSpec, rules: str) -> Records:
        return _complete(reading, reading.study.centre(model, rules), reading.records(model, rules))

    return records


def _complete(reading: Reading, runs: Sequence[RunSpec], found: Records) -> Records:
    """Return the records of runs, all of which must have some."""
    if len(found) < len(runs):
        lost = f"{len(runs) - len(found)} of {len(runs)} runs of {describe(runs[0].model)}"
        raise RunError(f"{reading.study.name}: {lost} have no records; train them again to see their curves")
    return found


def fan_in(readings: Readings) -> Shown:
    """Show that a fan-in init of the down-projections leaves the collapse that the rule keeps, by sets of constants."""
    (reading,) = readings.values()
    study, drawings, told, answers = reading.study, [], [], []
    sets = {name: study.hps_of(name) for name in (study.hps.rules, *study.contrasts)}
    for name, hps in sets.items():
        if hps.rules == FAN_IN:
            continue
        beside, off = hps.replace(rules=FAN_IN), {}
        for each in (name, *(other for other, its in sets.items() if its == beside)):
            shown = collapse.data(study, each, _all_records(reading))
            drawings.append(render(f"collapse-{each}", collapse.draw, shown))
            off[each] = _collapses_by_axis(shown)["alpha"]
        ours, theirs = off.values()
        both = [f"{100 * each.max_deviation_until_half:.2g}%" for each in (ours, theirs)]
        label = "tuned constants" if name == study.hps.rules else name
        told.append(f"{label}: {both[0]} by the rule, {both[1]} by fan-in")
        if _is_kept(ours):
            is_kept = _is_kept(theirs)
            answers.append(None if is_kept is None else not is_kept)
    number = f"largest relative difference until half of the drop, {'; '.join(told)}"
    why = (
        f"The rule must stay within {COLLAPSED:.0%}, and fan-in leave this and {FAR_SDS:g} s.d. of the base's seeds. "
        f"Constants with which the rule itself leaves its base ask nothing. {PICTURE}"
    )
    return Shown(tuple(drawings), Outcome(verdict_of(answers or [None]), number, why))


def _is_kept(found: Collapse) -> bool | None:
    """Answer whether curves lie on the base's until half of the drop; None where its own seeds lie as far apart."""
    far = [each for each in found.deviations if each.max_until_half > COLLAPSED]
    if not far:
        return True
    has_left = any(each.leaves_at is not None and each.leaves_at <= found.half_drop_step for each in far)
    return False if has_left else None


def imbalance(readings: Readings) -> Shown:
    """Show the loads of all scales and of a longer horizon."""
    drawings, late, cut_short, chance = [], {}, [], 0.0
    for name, reading in readings.items():
        shown = balance.data(reading.study, _all_records(reading))
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
        dense: the study of the dense baseline, which sweeps its own learning rate and init std.
        ahead: pairs of scalings of which the first is said to end below the second.
        alike: pairs that are said to end alike.
    """

    def show(readings: Readings) -> Shown:
        known = {name: _scaled(readings[study], name) for study, names in moe.items() for name in names}
        baseline, edge = _best_dense(readings[dense])
        drawing = render("race", race.draw, race.data([*(each.runner for each in known.values()), baseline.runner]))
        ends = f"Final loss: {', '.join(map(str, (*known.values(), baseline)))}.{edge}"
        if baseline.has_diverged:
            number = "the dense model diverges wherever it was tried"
            return Shown((drawing,), Outcome("INCONCLUSIVE", number, ends))
        told, answers = [], []
        for each in known.values():
            gap = paired(baseline.losses, each.losses)
            competes = False if each.has_diverged else paired(each.losses, baseline.losses).is_at_most(ALIKE)
            answers.append(None if competes and edge else competes)
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
    runner = _runner(f"MoE {name}", _all_records(reading)(model, rules))
    return Contestant(runner, reading.table.zero_shot(name, scale, rules))


def _best_dense(reading: Reading) -> tuple[Contestant, str]:
    """Return the dense model where its median loss is lowest, and a note where a grid has its best at an edge."""
    study, axis = reading.study, reading.study.axis_names[0]
    curves = [reading.table.curve(axis, 1.0, study.hps.rules, hp) for hp in study.sweep(axis)]
    known = [curve for curve in curves if curve is not None]
    best = min(known, key=lambda curve: curve.medians[curve.best_place])
    runs = study.curve(axis, study.base, study.hps.rules, best.hp)[best.best_place]
    records = _complete(reading, runs, reading.records_of(runs))
    edges = [f"{HP_SHORT[curve.hp]} 2^{curve.best_value:g}" for curve in known if curve.is_best_at_edge]
    edge = f" The best of the dense model is at the edge of a grid: {', '.join(edges)}." if edges else ""
    return Contestant(_runner(DENSE, records), best.losses[best.best_place]), edge


def _runner(label: str, records: Records) -> race.Runner:
    found = race.runner(label, records, is_ours=label != DENSE)
    assert found is not None, f"{label} has records"
    return found


def _is_alike(gap: Change) -> bool | None:
    """Answer whether two losses are alike, given their difference; None where chance decides."""
    return replace(gap, mean=abs(gap.mean)).is_at_most(ALIKE)
