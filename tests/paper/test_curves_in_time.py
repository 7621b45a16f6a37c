"""Verdicts that training curves decide."""

import math

import pytest
from readings import AT_CENTRE, BASE, BATCH, HOLDS, INF, LR, NOT, STEPS, UNSURE, loads, log2_lr, outcome, reading, study

from expertp.errors import RunError
from expertp.paper import curves_in_time


def falling(off=0.0, until=STEPS):
    """Return records of a loss from 6 to 2, higher by a share of itself; it has diverged before the end if told so."""
    losses = [(6 - 4 * place / (STEPS - 1)) * (1 + off) for place in range(STEPS)]
    return [{"step": step, "loss": loss if step <= until else None} for step, loss in enumerate(losses, 1)][: until + 1]


def collapse(off):
    """Judge two studies in which the relative distance from the base, or records, are told by name and axis."""

    def of(name):
        def records(run):
            moved = [key for key, field in fields.items() if getattr(run.model, field) != BASE.get(field, 1)]
            found = off.get((name, moved[0]), 0.01) if moved else 0.0
            return falling(found) if isinstance(found, float) else found

        return records

    fields = {"width": "n_embd", "depth": "n_layer", "experts": "n_exp", "alpha": "alpha_ffn"}
    axes = {
        axis: {"sizes": sizes, **LR} for axis, sizes in zip(fields, ([32, 64], [2, 4], [4, 8], [1, 2]), strict=True)
    }
    readings = {name: reading(study(name, axes=axes, **AT_CENTRE), records=of(name)) for name in ("one", "two")}
    return outcome(curves_in_time.collapses(("one", "two"))(readings))


def test_curves_collapse_when_all_sizes_stay_close_to_the_base():
    verdict, number, why = collapse({("two", "alpha"): -0.015, ("one", "depth"): 0.3})
    assert verdict == HOLDS
    assert number == "largest relative difference until half of the drop: 1.5% (two, alpha)"
    assert why.startswith(
        "All 6 axes stay within 2%. Not part of the claim: one, depth 30%, two, depth 1%. In the pictures"
    )
    assert "grey: ± 3 s.d. of the base's seeds" in why


def test_curves_do_not_collapse_when_one_size_lies_off():
    verdict, number, why = collapse({("one", "experts"): 0.03, ("two", "width"): -0.041})
    assert verdict == NOT
    assert number == "largest relative difference until half of the drop: 4.1% (two, width)"
    assert why.startswith("Beyond 2%: one, experts 3%, two, width 4.1%.")


def test_curves_do_not_collapse_when_a_run_diverges_before_half_of_the_drop():
    verdict, number, _ = collapse({("one", "width"): falling(until=2)})
    assert verdict == NOT
    assert number.endswith(": inf% (one, width)")
    assert collapse({("one", "width"): falling(until=6)})[0] == HOLDS


def fan_in(ours, theirs, other=None, spread=0.0):
    """Judge a study in which larger experts are so far off, under other constants `other` far off if told.

    Losses of one seed are higher by `spread` than those of the one before.
    """
    axes = {"alpha": {"sizes": [1, 4], **LR}}
    contrasts = {"fan_in_down": {"axes": ["alpha"]}}
    if other:
        contrasts["paper"] = {"axes": ["alpha"], "hps": {"constants": "paper"}}
        contrasts["paper, fan-in"] = {"axes": ["alpha"], "hps": {"constants": "paper", "rules": "fan_in_down"}}
    spec = study("fan-in-down", axes=axes, contrasts=contrasts, **AT_CENTRE)
    spec = spec.replace(hps=spec.hps.replace(constants={"router_lr": 0.25}))

    def records(run):
        of = other if run.hps.constants == "paper" else (ours, theirs)
        off = of[run.hps.rules == "fan_in_down"]
        beside = spread * run.train.seed
        if run.model.alpha_ffn == 1:
            return falling(beside)
        return falling(until=1) if off == math.inf else falling((1 + off) * (1 + beside) - 1)

    return outcome(curves_in_time.fan_in({"fan-in-down": reading(spec, records=records)}))


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict", "both"),
    [
        (0.01, 0.08, HOLDS, "1% by the rule, 8% by fan-in"),
        (0.01, math.inf, HOLDS, "1% by the rule, inf% by fan-in"),
        (0.01, 0.015, NOT, "1% by the rule, 1.5% by fan-in"),
        (0.03, 0.08, UNSURE, "3% by the rule, 8% by fan-in"),
        (math.inf, math.inf, UNSURE, "inf% by the rule, inf% by fan-in"),
    ],
)
def test_fan_in_is_told_from_the_rule_by_the_same_bound(ours, theirs, verdict, both):
    found, number, _ = fan_in(ours, theirs)
    assert (found, number) == (verdict, f"largest relative difference until half of the drop, tuned constants: {both}")


def test_a_distance_that_seeds_have_as_well_decides_nothing():
    assert fan_in(0.01, 0.08, spread=0.01)[0] == HOLDS
    assert fan_in(0.01, 0.08, spread=0.05)[0] == UNSURE
    # One set of constants that decides does not speak for another that does not.
    assert fan_in(0.01, 0.08, (0.01, 0.9), spread=0.05)[0] == UNSURE


@pytest.mark.parametrize(
    ("tuned", "paper", "verdict"),
    [
        ((0.03, 0.01), (0.01, 0.08), HOLDS),
        ((0.01, 0.08), (0.01, 0.08), HOLDS),
        ((0.01, 0.08), (0.01, 0.012), NOT),
        ((0.03, 0.01), (0.01, 0.012), NOT),
        ((0.03, 0.01), (0.04, 0.08), UNSURE),
    ],
)
def test_constants_with_which_the_rule_keeps_no_collapse_ask_nothing(tuned, paper, verdict):
    found, number, _ = fan_in(*tuned, paper)
    assert found == verdict
    assert number.count("by the rule") == 2
    assert f"; paper: {100 * paper[0]:.2g}% by the rule" in number


def balance(wide, seed_1=None):
    """Judge two studies; the wide model of the second has such loads, its seed 1 others if told."""

    def records(run):
        late = [0.05] * 2 if run.model.n_embd == 32 else wide if run.train.seed == 0 or seed_1 is None else seed_1
        return loads([0.7] * (STEPS - 2) + late) if len(late) == 2 else loads(late)

    axes = {"width": {"sizes": [32, 64], **LR}}
    specs = {name: study(name, axes=axes, **{**AT_CENTRE, "seeds": [0, 1]}) for name in ("short", "long")}
    even = reading(specs["short"], records=lambda _: loads([0.7] * (STEPS - 2) + [0.025] * 2))
    return outcome(curves_in_time.imbalance({"short": even, "long": reading(specs["long"], records=records)}))


def test_loads_are_balanced_when_they_are_late_in_training():
    verdict, number, why = balance([0.1, 0.08])
    assert verdict == HOLDS
    assert "an s.d. of 15.3% of kappa" in why  # sqrt(3/4 / 32) of the 32 tokens that an expert should get
    # Over kappa = 1/4: 0.1, 0.1 in the short study, 0.2 and 0.36 in the long one.
    assert number == "late max |Load - kappa| over kappa: median 0.15, largest 0.36 (long, width 64)"


def test_an_expert_without_a_token_is_no_balance():
    verdict, number, _ = balance([0.25, 0.25])
    assert verdict == NOT
    assert number.endswith("largest 1.00 (long, width 64)")


def test_loads_of_a_run_that_diverges_are_unknown_and_not_those_of_its_start():
    verdict, number, why = balance([0.05, 0.05], seed_1=[0.01] * 3)
    assert verdict == UNSURE
    assert number == "late max |Load - kappa| over kappa: median 0.10, largest 0.20 (long, width 32)"
    assert why.endswith("A run diverges, and late loads are not known: long, width 64.")


def test_loads_of_which_all_have_diverged_are_unknown():
    spec = study("s", axes={"width": {"sizes": [32, 64], **LR}}, **AT_CENTRE)
    found = curves_in_time.imbalance({"s": reading(spec, records=lambda _: loads([0.1] * 3))})
    assert outcome(found)[:2] == (UNSURE, "late loads are unknown")


def validated(losses, seconds):
    """Return records of four validations, one at every second step."""
    return [
        {"step": 2 * k, "loss": 9.0, "val_loss": loss, "tokens": 2 * k * BATCH, "seconds": 2 * k * seconds}
        for k, loss in enumerate(losses, 1)
    ]


DENSE = {-9: [5, 4.5, 4.3, 4.2], -8: [5, 4.5, 4.2, 4.0], -7: [6, 5, 4, 3.8], -6: [5, 4, 3.6, 3.5], -5: [6, 5, 4, 4]}


def race(moe, dense=DENSE, lost=(), noise=0.0, seeds=3, **claims):
    """Judge models by name against a dense one by learning rate, given validations; what is lost has diverged.

    With noise, a MoE model ends higher by that on the second seed and lower on the third.
    """
    joint = {name: {"models": [{"n_embd": 64, "alpha_ffn": place}], **LR} for place, name in enumerate(moe, 1)}
    own = study("moe", joint=joint, **AT_CENTRE, seeds=list(range(seeds)))
    model = {"base": {**BASE, "n_exp": 1, "ffn": "dense"}, "axes": {"width": {"sizes": [32], **LR}}}
    theirs = study("dense", **model, grids={"log2_lr": sorted(dense)}, verdict=None, seeds=list(range(seeds)))
    names = dict(enumerate(moe, 1))

    def of(curves, name, noise=0.0):
        def loss(run):
            end = curves[name(run)][-1] if curves[name(run)] else 3.0
            return INF if name(run) in lost else end + (0.0, noise, -noise)[run.train.seed]

        return loss

    def by_name(run):
        return names[int(run.model.alpha_ffn)]

    readings = {
        "moe": reading(own, of(moe, by_name, noise), lambda run: validated(moe[by_name(run)], seconds=2.0)),
        "dense": reading(theirs, of(dense, log2_lr), lambda run: validated(dense[log2_lr(run)], seconds=1.0)),
    }
    return outcome(curves_in_time.races({"moe": tuple(moe)}, "dense", **claims)(readings))


def test_a_race_is_won_when_all_models_come_down_to_the_best_dense_loss():
    verdict, number, why = race({"A": [5, 4, 3, 2], "B": [6, 5, 4.5, 3]})
    assert verdict == HOLDS
    # A is at 3.5 after 5 steps of 8, which take 10 seconds where the dense model takes 8; B after 7.33 and 14.67.
    assert number == (
        "dense, tuned minus MoE A +1.5000 ± 0.0000 (1.6x fewer tokens, 0.8x the speed); "
        "dense, tuned minus MoE B +0.5000 ± 0.0000 (1.1x fewer tokens, 0.5x the speed)"
    )
    assert why == "Final loss: MoE A 2.000, MoE B 3.000, dense, tuned 3.500."


def test_a_race_is_lost_when_one_model_stays_above_the_dense_loss():
    verdict, number, why = race({"A": [5, 4, 3, 2], "B": [6, 5, 4.5, 3.6]})
    assert verdict == NOT
    assert number.endswith("(1.6x fewer tokens, 0.8x the speed); dense, tuned minus MoE B -0.1000 ± 0.0000")
    assert "MoE B 3.600, dense, tuned 3.500" in why


def test_a_race_that_chance_decides_is_not_won_and_not_lost():
    near = {"A": [5, 4, 3.6, 3.45]}
    assert race(near)[0] == HOLDS
    assert race(near, noise=0.1)[0] == UNSURE
    assert race({"A": [5, 4, 3.6, 3.51]})[0] == HOLDS  # a hundredth behind competes
    assert race(near, seeds=1)[:2] == (
        UNSURE,
        "dense, tuned minus MoE A +0.0500 (one seed) (1.1x fewer tokens, 0.5x the speed)",
    )


def test_a_model_that_diverges_or_rises_again_has_not_won():
    # However low it was: the curve of one that has diverged ends early.
    verdict, number, why = race({"A": [5, 4, 3, 2], "B": [5, 3.4, 3.5, 3.7]}, lost={"A"})
    assert verdict == NOT
    assert "fewer tokens" not in number
    assert why == "Final loss: MoE A diverges, MoE B 3.700, dense, tuned 3.500."


@pytest.mark.parametrize(
    ("ends", "noise", "verdict"),
    [
        ((3.0, 2.9, 2.91), 0.0, HOLDS),
        ((3.0, 3.1, 3.1), 0.0, NOT),  # not ahead
        ((3.0, 2.9, 2.8), 0.0, NOT),  # not alike
        ((3.0, 2.95, 2.95), 0.2, HOLDS),  # seeds move all models alike, and differences stay
    ],
)
def test_models_are_set_beside_each_other_where_the_paper_does(ends, noise, verdict):
    moe = {name: [5, 4, 3.5, end] for name, end in zip(("A", "B", "C"), ends, strict=True)}
    found, number, _ = race(moe, noise=noise, ahead=[("B", "A")], alike=[("B", "C")])
    assert found == verdict
    assert f"A minus B {ends[0] - ends[1]:+.4f}" in number
    assert f"B minus C {ends[1] - ends[2]:+.4f}" in number


def test_a_learning_rate_at_which_dense_runs_diverge_is_not_the_best():
    _, _, why = race({"A": [5, 4, 3, 2]}, lost={-6})
    assert why.endswith("dense, tuned 3.800.")


def test_a_dense_model_that_is_best_at_the_edge_of_its_grid_may_not_be_tuned_and_that_is_said():
    at_edge = {rate: DENSE[rate] for rate in (-8, -7, -6)}
    verdict, _, why = race({"A": [5, 4, 3, 2]}, dense=at_edge)
    assert verdict == UNSURE
    assert why.endswith("dense, tuned 3.500. The best of the dense model is at the edge of a grid: lr 2^-6.")
    assert race({"A": [5, 4, 3.9, 3.8]}, dense=at_edge)[0] == NOT


def test_nothing_is_compared_with_a_dense_model_that_always_diverges():
    verdict, number, why = race({"A": [5, 4, 3, 2]}, lost=set(DENSE))
    assert (verdict, number) == (UNSURE, "the dense model diverges wherever it was tried")
    assert why.startswith("Final loss: MoE A 2.000, dense, tuned diverges.")


def test_a_race_without_records_is_refused():
    with pytest.raises(
        RunError, match=r"moe: 3 of 3 runs of n_embd 64, n_layer 2, E4A1, alpha_ffn 2.* have no records"
    ):
        race({"A": [5, 4, 3, 2], "B": []})


@pytest.mark.parametrize(
    "show",
    [
        lambda: collapse({("one", "width"): falling(until=1)}),
        lambda: balance([0.05, 0.05], seed_1=[0.01] * 3),
        lambda: race({"A": [5, 4, None, None]}, {lr: [5, None, None, None] for lr in DENSE}, {"A", *DENSE}),
    ],
)
def test_runs_that_diverge_can_be_drawn(drawings, show):
    drawings()
    show()
