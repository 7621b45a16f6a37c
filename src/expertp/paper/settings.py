"""Findings about settings and shapes: constants, weight decay, experts or larger experts, scaling with parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from expertp.analysis.balance import load_balance
from expertp.analysis.paired import paired
from expertp.analysis.scaling import MIN_SIZES
from expertp.figures import curves, expert_shape
from expertp.figures.paper import bias_shift, constants_load, granularity, scaling_fit, weight_decay
from expertp.figures.save import Drawing, render
from expertp.figures.theory import soft_router as soft_router_figure
from expertp.paper.finding import BALANCED, Outcome, Readings, Shown, Verdict, is_positive, verdict_of
from expertp.report.reading import Reading, Record
from expertp.spec import ModelSpec
from expertp.study import StudySpec
from expertp.theory.soft_router import WAYS, soft_router

# The contrast that has no constants.
ONES = "all ones"
POSITIVE = "Positive: more, smaller experts are better at the same number of parameters."
# Loss that a weight decay must gain to matter, in nats.
BENEFIT = 0.01
# Share of the variance that a straight line must explain to count as one; the paper has 0.84 to 0.93.
STRAIGHT = 0.8
# Largest distance of the largest networks to the limit that counts as having come to it.
CLOSE = 0.05
# By how much the share of exchanged experts may change when their number doubles, at the largest numbers.
LEVEL = 0.02


def constants_loss(readings: Readings) -> Shown:
    """Show loss over learning rate at the base: tuned constants, and all ones."""
    (reading,) = readings.values()
    study, table = reading.study, reading.table
    ours, names = study.hps.rules, _sets(study)
    drawing = render("constants-loss", curves.draw, curves.base_data(table, "log2_lr", names))
    axis, told, lost = study.axis_names[0], [], {}
    found = {name: curve for name in names if (curve := table.curve(axis, 1.0, name, "log2_lr"))}
    best = found[ours].losses[found[ours].best_place]
    gaps = {}
    for name, curve in found.items():
        place = curve.best_place
        lost[name] = sum(curve.n_diverged[place + 1 :])
        if name != ours:
            gaps[name] = paired(curve.losses[place], best)
            told.append(f"{names[name]} minus tuned {gaps[name]}")
    ones = found[ONES]
    is_lost = math.inf in ones.losses[ones.best_place] and math.inf not in best
    is_higher = True if is_lost else is_positive(gaps[ONES])
    # Where neither diverges, larger models or a longer horizon might: that decides nothing.
    is_less_stable = None if lost[ONES] == lost[ours] else lost[ONES] > lost[ours]
    verdict = verdict_of([is_higher, is_less_stable])
    diverging = ", ".join(f"{names[name]} {n}" for name, n in lost.items())
    why = f"Each at its own best learning rate. Runs that diverge above it: {diverging}."
    return Shown((drawing,), Outcome(verdict, "; ".join(told), why))


def _sets(study: StudySpec) -> dict[str, str]:
    """Return what the picture calls each set of constants."""
    return {study.hps.rules: "tuned", **{name: name for name in study.contrasts}}


def constants_balance(readings: Readings) -> Shown:
    """Show how evenly experts are loaded at every learning rate, under tuned constants and all ones."""
    (reading,) = readings.values()
    study, table = reading.study, reading.table
    axis, names = study.axis_names[0], _sets(study)
    rates = study.grid("log2_lr", axis)
    sets = {
        label: {
            value: reading.records_of(runs)
            for value, runs in zip(rates, study.curve(axis, study.base, name, "log2_lr"), strict=True)
        }
        for name, label in names.items()
    }
    late = {label: _late_loads(by_rate, study.train.steps) for label, by_rate in sets.items()}
    # A learning rate counts where no run of any set has diverged; a seed then has one number per set.
    whole = [value for value in rates if all(len(each[value]) == len(study.seeds) for each in late.values())]
    means = {
        label: [float(np.mean([each[value][seed] for value in whole])) if whole else math.nan for seed in study.seeds]
        for label, each in late.items()
    }
    gaps = {label: paired(means[ONES], values) for label, values in means.items() if label != ONES}
    told = ", ".join(f"{label} {np.mean(values):.3f}" for label, values in means.items())
    differences = ", ".join(f"minus {label} {gap}" for label, gap in gaps.items())
    bests = {label: table.curve(axis, 1.0, name, "log2_lr") for name, label in names.items()}
    at_best = ", ".join(
        f"{label} {_mean(late[label][curve.best_value]):.3f}"
        for label, curve in bests.items()
        if curve and curve.best_value in whole
    )
    bound = BALANCED * float(study.base.kappa)
    uneven = ", ".join(f"{label} {sum(_mean(each[value]) > bound for value in whole)}" for label, each in late.items())
    number = f"late max |Load - kappa|, mean over {len(whole)} learning rates: {told}; {ONES} {differences}"
    why = (
        f"At the best learning rate of each: {at_best or 'unknown'}. "
        f"Learning rates at which it is above half of kappa: {uneven}."
    )
    drawing = render("constants-load", constants_load.draw, constants_load.data(sets, 1 - float(study.base.kappa)))
    return Shown((drawing,), Outcome(verdict_of([is_positive(gaps["tuned"])]), number, why))


def _mean(by_seed: Mapping[int, float]) -> float:
    return float(np.mean(list(by_seed.values())))


def _late_loads(by_rate: Mapping[float, Mapping[int, Sequence[Record]]], steps: int) -> dict[float, dict[int, float]]:
    """Return late load deviations by learning rate and seed, of runs that come to the end."""
    found = {
        value: {seed: load_balance(1.0, {seed: records}) for seed, records in by_seed.items()}
        for value, by_seed in by_rate.items()
    }
    return {
        value: {seed: late for seed, load in loads.items() if load and not math.isnan(late := load.late(steps))}
        for value, loads in found.items()
    }


def decay(readings: Readings) -> Shown:
    """Show loss over tau = steps lr weight_decay at several sizes."""
    (reading,) = readings.values()
    study, table = reading.study, reading.table
    sizes, told = {}, []
    is_needless: list[bool | None] = []
    for axis in study.axis_names:
        for scale, model in study.models(axis).items():
            label = "base" if scale == 1 else f"{axis} {study.size_of(axis, model):g}"
            points = []
            for name in (study.hps.rules, *study.contrasts):
                hps = study.hps_of(name)
                points.append((study.train.steps * hps.lr * hps.weight_decay, table.zero_shot(axis, scale, name)))
            sizes[label] = sorted(points)
    for label, points in sizes.items():
        without = points[0][1]
        best = min(points[1:], key=lambda each: float(np.mean(each[1])))
        if math.inf in best[1] or math.inf in without:
            is_needless.append(None if math.inf in best[1] and math.inf in without else math.inf not in without)
            told.append(f"{label}: {'every decay' if math.inf in best[1] else 'only training without decay'} diverges")
            continue
        gain = paired(without, best[1])
        is_needless.append(gain.is_at_most(BENEFIT))
        told.append(f"{label}, tau {best[0]:.2g}: {gain}")
    drawing = render("weight-decay", weight_decay.draw, weight_decay.data(sizes))
    number = f"loss without decay minus that with the best one, {'; '.join(told)}"
    why = f"More than {BENEFIT} would be a benefit; below zero no decay is better than any."
    return Shown((drawing,), Outcome(verdict_of(is_needless), number, why))


def tradeoff(readings: Readings) -> Shown:
    """Show experts against expert size: along both axes of two studies, and at a fixed active model."""
    drawings, told, signs = [], [], []
    for name in ("transfer-quarter", "transfer-twelfth"):
        table = readings[name].table
        drawings.append(render(f"expert-shape-{name}", expert_shape.draw, expert_shape.data(table)))
        scale = max(table.study.models("experts"))
        rules = table.study.hps.rules
        gain = paired(table.zero_shot("alpha", scale, rules), table.zero_shot("experts", scale, rules))
        signs.append(is_positive(gain))
        told.append(f"{name}: {scale:g}x experts ahead of {scale:g}x size by {gain}")
    at_fixed_size = _granularity(readings["granularity"])
    verdict = verdict_of([*signs, *at_fixed_size.signs])
    number = "; ".join([*told, at_fixed_size.number])
    return Shown((*drawings, at_fixed_size.drawing), Outcome(verdict, number, at_fixed_size.why))


def tradeoff_long(readings: Readings) -> Shown:
    """Show the same for a long horizon."""
    found = _granularity(*readings.values())
    return Shown((found.drawing,), Outcome(verdict_of(found.signs), found.number, found.why))


@dataclass(frozen=True)
class Granularity:
    """Models cut into ever more experts, by their active parameters: the picture, and whether most beats fewest."""

    drawing: Drawing
    signs: tuple[bool | None, ...]
    number: str
    why: str


def _granularity(reading: Reading) -> Granularity:
    study, table = reading.study, reading.table
    groups: dict[int, list[tuple[ModelSpec, tuple[float, ...]]]] = {}
    for joint in study.joint:
        scale, model = max(study.models(joint).items())
        size = round(model.n_act * model.alpha_ffn)
        groups.setdefault(size, []).append((model, table.zero_shot(joint, scale, study.hps.rules)))
    named = {f"{study.train.steps} steps, n_act × alpha_ffn = {size}": group for size, group in groups.items()}
    shown = granularity.data(named)
    gains = {size: granularity.gain(points) for size, points in zip(groups, shown.groups.values(), strict=True)}
    at = {size: f" at n_act alpha_ffn {size}" if len(gains) > 1 else "" for size in gains}
    told = "most beside fewest active experts " + ", ".join(f"{gain}{at[size]}" for size, gain in gains.items())
    courses = ["falls" if granularity.is_monotone(each) else "does not fall" for each in shown.groups.values()]
    why = f"{POSITIVE} The median {' and '.join(courses)} at every step to more active experts."
    return Granularity(
        render(study.name, granularity.draw, shown), tuple(is_positive(gain) for gain in gains.values()), told, why
    )


def parameters(readings: Readings) -> Shown:
    """Show final loss over the number of parameters, counted in four ways."""
    points, left_out = [], 0
    for reading in readings.values():
        study, table = reading.study, reading.table
        for axis in study.axis_names:
            for scale, model in study.models(axis).items():
                if scale == 1 and axis != study.axis_names[0]:
                    continue
                losses = table.zero_shot(axis, scale, study.hps.rules)
                if all(map(math.isfinite, losses)):
                    points.append(scaling_fit.ScaledModel(axis, model, float(np.mean(losses)), len(losses)))
                else:
                    left_out += 1
    if len(points) < MIN_SIZES:
        return Shown((), Outcome("INCONCLUSIVE", "no fit", f"On all seeds only {len(points)} models finish."))
    shown = scaling_fit.ScalingFitData(tuple(points))
    fits = {label: shown.fits[counted] for counted, label in scaling_fit.COUNTED.items()}
    is_straight = all(fit.r2 >= STRAIGHT and fit.slope < 0 for fit in fits.values())
    verdict: Verdict = "HOLDS" if is_straight else "DOES NOT HOLD AT THIS SCALE"
    number = "R²: " + ", ".join(f"{label} {fit.r2:.3f}" for label, fit in fits.items())
    models = f"{len(points)} models" + (f", without {left_out} that diverge on a seed." if left_out else ".")
    why = f"{models} The paper has 0.900, 0.914, 0.844, 0.933 in this order; {STRAIGHT} is asked of each."
    return Shown((render("scaling-fit", scaling_fit.draw, shown),), Outcome(verdict, number, why))


def bias_shifts(_: Readings) -> Shown:
    """Show the share of a token's experts that one update of the biases exchanges."""
    shown = bias_shift.data(n_tests=20_000)
    ends = {kappa: shown.of(kappa)[-2:] for kappa in shown.kappas}
    changes = {kappa: more.share / fewer.share - 1 for kappa, (fewer, more) in ends.items()}
    worst = max(changes.values(), key=abs)
    verdict: Verdict = "HOLDS" if abs(worst) <= LEVEL else "DOES NOT HOLD AT THIS SCALE"
    told = ", ".join(
        f"{ends[kappa][1].share:.1%} ({change:+.1%}) at kappa {kappa}" for kappa, change in changes.items()
    )
    number = (
        f"share exchanged with {ends[shown.kappas[0]][1].n_exp} experts, and its change by their last doubling: {told}"
    )
    spread = ", ".join(f"{ratio:.2f} at {kappa}" for kappa, ratio in bias_shift.spread(shown).items())
    why = f"Up to {LEVEL:.0%} counts as level. From 4 active experts on, the largest share is {spread} times the least."
    return Shown((render("bias-shift", bias_shift.draw, shown),), Outcome(verdict, number, why))


def soft_routers(_: Readings) -> Shown:
    """Show networks with soft routers on their way to the mean-field limit, which the paper does not solve."""
    found = soft_router()
    errors = [
        (comparison.error_of_mean(way.sizes[0]), comparison.error_of_mean(way.sizes[-1]))
        for way, comparison in zip(WAYS, found, strict=True)
    ]
    told = ", ".join(f"{way.title}: {first:.1%} to {last:.1%}" for way, (first, last) in zip(WAYS, errors, strict=True))
    return Shown(
        (render("soft-router", soft_router_figure.draw, soft_router_figure.data(WAYS, found)),),
        Outcome(
            verdict_of([last <= CLOSE and last < first for first, last in errors]),
            f"distance of the networks' mean loss to the solved limit, smallest to largest: {told}",
            f"It must fall, to {CLOSE:.0%} or less. The law of p narrows as Ne grows: each is beside its own theory.",
        ),
    )
