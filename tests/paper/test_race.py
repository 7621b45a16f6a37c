"""The race of MoE models against a dense one (speedrun, medium): its curves, its figure and its answer."""

import math
from dataclasses import replace

import numpy as np
import pytest
from made_tables import (
    AT_CENTRE,
    BASE,
    BATCH,
    HOLDS,
    INF,
    LR,
    NOT,
    UNSURE,
    check_drawing,
    log2_lr,
    read,
    study,
    table,
)

from expertp.errors import RunError
from expertp.figures.save import render
from expertp.paper import medium, race, speedrun
from expertp.paper.race import RaceData, model_curve
from expertp.training.records import StepMetrics


def records(losses, validated=True, seconds=2.0):
    """Return the records of a run with such losses, one at every step of 100 tokens."""
    return [
        StepMetrics(
            step=step, loss=loss, val_loss=loss if validated else None, tokens=100 * step, seconds=seconds * step
        )
        for step, loss in enumerate(map(float, losses), 1)
    ]


OURS = model_curve("MoE E4A1", {0: records([6, 4, 3, 2], seconds=5.0), 1: records([8, 6, 5, 4], seconds=7.0)}, True)
THEIRS = model_curve("dense", {0: records([7, 6, 5, 4.5])}, False)


def test_a_curve_has_tokens_mean_seconds_and_the_losses_of_each_seed():
    assert OURS.tokens_T.tolist() == [100, 200, 300, 400]
    assert OURS.seconds_T.tolist() == [6, 12, 18, 24]
    assert OURS.losses_ST.tolist() == [[6, 4, 3, 2], [8, 6, 5, 4]]
    assert OURS.mean_T[-1] == 3
    assert OURS.is_validation
    rows = RaceData((OURS,)).rows()
    assert rows[1] == {
        "model": "MoE E4A1", "is_ours": True, "loss_of": "validation", "tokens": 200, "seconds": 12, "mean": 5,
        "min": 4, "max": 6, "seeds": 2,
    }  # fmt: skip


def test_validations_make_the_curve_where_there_are_four():
    found = records([9.0] * 20, validated=False)
    for step in (5, 10, 15):
        found[step - 1] = replace(found[step - 1], val_loss=3.0)
    training = model_curve("few", {0: found}, True)
    assert (len(training.tokens_T), training.mean_T[-1], training.is_validation) == (20, 9.0, False)
    found[-1] = replace(found[-1], val_loss=2.5)
    validation = model_curve("enough", {0: found}, True)
    assert validation.tokens_T.tolist() == [500, 1000, 1500, 2000]
    assert validation.losses_ST.tolist() == [[3.0, 3.0, 3.0, 2.5]]
    assert RaceData((training,)).of == "training loss, smoothed (nats)"
    assert RaceData((validation,)).of == "validation loss (nats)"
    assert race.cost_of_reaching(validation, training) is None


def test_training_losses_are_smoothed_and_end_with_a_whole_window():
    # 200 records have a window of 5; the last batch of all is a hard one.
    found = model_curve("noisy", {0: records([5.0, 3.0] * 99 + [4.0, 50.0], validated=False)}, True)
    assert len(found.tokens_T) == len(found.seconds_T) == found.losses_ST.shape[1] == 198
    assert found.tokens_T[-1] == 19800
    assert found.losses_ST[0, 100] == pytest.approx((3 * 5 + 2 * 3) / 5)


def test_no_records_are_no_curve_and_a_diverged_run_has_no_final_loss():
    for nothing in ({}, {0: []}):
        with pytest.raises(AssertionError, match="none has records"):
            model_curve("none", nothing, True)
    found = model_curve("half", {0: records([6, 5, 4, 3]), 1: records([6, 5])}, False)
    assert found.mean_T[:2].tolist() == [6, 5]
    assert math.isnan(found.mean_T[-1])
    assert [row["mean"] for row in RaceData((found,)).rows()] == [6, 5, None, None]
    assert "half, diverged" in render("race", race.draw, RaceData((found,))).svg
    assert race.cost_of_reaching(OURS, found) is None


def test_the_cost_of_reaching_a_loss_is_that_of_the_point_at_which_ours_has_it():
    # Ours falls from 5 to 4 between 200 and 300 tokens, 12 and 18 seconds; theirs ends at 4.5 with 400 and 8.
    assert race.cost_of_reaching(OURS, THEIRS) == pytest.approx((250 / 400, 15 / 8))
    assert race.cost_of_reaching(THEIRS, OURS) is None
    assert race.cost_of_reaching(OURS, OURS) == (1, 1)


def test_the_cost_of_reaching_a_loss_on_power_laws_is_the_ratio_of_their_times():
    steps = np.arange(1, 2001)
    fast, slow = (model_curve("", {0: records((2 + steps**-0.5 * scale).tolist())}, True) for scale in (1, 2))
    assert race.cost_of_reaching(fast, slow) == pytest.approx((1 / 4, 1 / 4), rel=1e-3)


def test_the_start_of_a_race_is_left_out_of_the_figure():
    found = model_curve("long", {0: records([100.0] * 5 + [4.0] * 45 + [3.0] * 50)}, True)
    low, high = race.loss_range([found])
    assert low < 3
    assert 4 < high < 5
    assert race.loss_range([]) == (0, 1)


@pytest.mark.heavy
def test_the_figure_has_two_panels():
    words = ("MoE E4A1, 3.00", "dense, 4.50", "tokens", "seconds of training", "validation loss", "n = 1–2")
    check_drawing(race.draw, lambda: RaceData((OURS, THEIRS)), 2, words)


def validated(losses, seconds):
    """Return records of four validations, one at every second step."""
    return [
        StepMetrics(
            step=2 * k,
            loss=9.0,
            val_loss=None if loss is None else float(loss),
            tokens=2 * k * BATCH,
            seconds=2 * k * seconds,
        )
        for k, loss in enumerate(losses, 1)
    ]


DENSE = {-9: [5, 4.5, 4.3, 4.2], -8: [5, 4.5, 4.2, 4.0], -7: [6, 5, 4, 3.8], -6: [5, 4, 3.6, 3.5], -5: [6, 5, 4, 4]}


def tables(moe, dense=DENSE, lost=(), noise=0.0, seeds=3, centre=-6):
    """Return MoE models by name and a dense one by learning rate, given validations; those in `lost` diverge.

    `centre` is the learning rate of the dense study. With noise, a MoE model ends higher by that on the second seed and
    lower on the third.
    """
    joint = {name: {"models": [{"n_embd": 64, "alpha_ffn": place}], **LR} for place, name in enumerate(moe, 1)}
    own = study("moe", joint=joint, **AT_CENTRE, seeds=list(range(seeds)))
    model = {"base": {**BASE, "n_exp": 1, "ffn": "dense"}, "axes": {"width": {"sizes": [32], **LR}}}
    model |= {"grids": {"log2_lr": sorted(dense)}, "verdict": None, "hps": {"lr": 2.0**centre}}
    theirs = study("dense", **model, seeds=list(range(seeds)))
    names = dict(enumerate(moe, 1))

    def of(curves, name, noise=0.0):
        def loss(run):
            end = curves[name(run)][-1] if curves[name(run)] else 3.0
            return INF if name(run) in lost else end + (0.0, noise, -noise)[run.train.seed]

        return loss

    def by_name(run):
        return names[int(run.model.alpha_ffn)]

    return (
        table(own, of(moe, by_name, noise), lambda run: validated(moe[by_name(run)], seconds=2.0)),
        table(theirs, of(dense, log2_lr), lambda run: validated(dense[log2_lr(run)], seconds=1.0)),
    )


def decide(moe, *args, ahead=(), equal=(), **settings):
    return read(outcome(moe, *args, ahead=ahead, equal=equal, **settings))


def outcome(moe, *args, ahead=(), equal=(), **settings):
    ours, theirs = tables(moe, *args, **settings)
    return race.decide_race(dict.fromkeys(moe, ours), theirs, ahead, equal)


@pytest.mark.parametrize(
    ("ends", "answer"),
    [
        ((3.5, 3.4, 3.41), HOLDS),
        ((3.51, 3.4, 3.41), NOT),  # a hundredth behind the dense model
        ((3.4, 3.4, 3.4), NOT),  # not below A
        ((3.4, 3.3, 3.33), NOT),  # not equal
    ],
)
def test_by_the_papers_criterion_means_are_compared(ends, answer):
    moe = {name: [5, 4, 3.9, end] for name, end in zip(("A", "B", "C"), ends, strict=True)}
    found = outcome(moe, noise=0.3, ahead=[("B", "A")], equal=[("B", "C")])
    assert found.paper_answer == answer


def test_a_model_that_diverges_competes_by_no_criterion():
    found = outcome({"A": [5, 4, 3, 2]}, lost={"A"})
    assert (found.answer, found.paper_answer) == (NOT, NOT)
    assert outcome({"A": [5, 4, 3, 2]}, lost=set(DENSE)).paper_answer == UNSURE


def test_a_race_is_won_when_all_models_come_down_to_the_best_dense_loss():
    answer, number, why = decide({"A": [5, 4, 3, 2], "B": [6, 5, 4.5, 3]})
    assert answer == HOLDS
    # A is at 3.5 after 5 steps of 8, which take 10 seconds where the dense model takes 8; B after 7.33 and 14.67.
    assert (
        "tuned dense model minus MoE A +1.5000 ± 0.0000 (reaches its loss with 62% of its tokens, in 125% of its time)"
        in number
    )
    assert (
        "tuned dense model minus MoE B +0.5000 ± 0.0000 (reaches its loss with 92% of its tokens, in 183% of its time)"
        in number
    )
    assert why == "Final loss: MoE A 2.000; MoE B 3.000; dense, tuned 3.500."


def test_a_race_is_lost_when_one_model_stays_above_the_dense_loss():
    answer, number, why = decide({"A": [5, 4, 3, 2], "B": [6, 5, 4.5, 3.6]})
    assert answer == NOT
    assert number.endswith("62% of its tokens, in 125% of its time); tuned dense model minus MoE B -0.1000 ± 0.0000")
    assert "MoE B 3.600; dense, tuned 3.500" in why


def test_a_race_that_chance_decides_is_not_won_and_not_lost():
    near = {"A": [5, 4, 3.6, 3.45]}
    assert decide(near)[0] == HOLDS
    assert decide(near, noise=0.1)[0] == UNSURE
    assert decide({"A": [5, 4, 3.6, 3.51]})[0] == HOLDS  # a hundredth behind competes
    answer, number, _ = decide(near, seeds=1)
    assert answer == UNSURE
    assert (
        "dense model minus MoE A +0.0500 (one seed) (reaches its loss with 92% of its tokens, in 183% of its time)"
        in number
    )


def test_a_model_that_diverges_or_rises_again_has_not_won():
    # However low it was: the curve of one that has diverged ends early.
    answer, number, why = decide({"A": [5, 4, 3, 2], "B": [5, 3.4, 3.5, 3.7]}, lost={"A"})
    assert answer == NOT
    assert "fewer tokens" not in number
    assert why == "Final loss: MoE A diverges; MoE B 3.700; dense, tuned 3.500."


@pytest.mark.parametrize(
    ("ends", "noise", "answer"),
    [
        ((3.0, 2.9, 2.91), 0.0, HOLDS),
        ((3.0, 3.1, 3.1), 0.0, NOT),  # not ahead
        ((3.0, 2.9, 2.8), 0.0, NOT),  # not equal
        ((3.0, 2.95, 2.95), 0.2, HOLDS),  # seeds move all models alike, and differences stay
    ],
)
def test_models_are_compared_with_each_other_where_the_paper_does(ends, noise, answer):
    moe = {name: [5, 4, 3.5, end] for name, end in zip(("A", "B", "C"), ends, strict=True)}
    found, number, _ = decide(moe, noise=noise, ahead=[("B", "A")], equal=[("B", "C")])
    assert found == answer
    assert f"A minus B {ends[0] - ends[1]:+.4f}" in number
    assert f"B minus C {ends[1] - ends[2]:+.4f}" in number


def test_a_learning_rate_at_which_dense_runs_diverge_is_not_the_best():
    _, _, why = decide({"A": [5, 4, 3, 2]}, lost={-6}, centre=-7)
    assert why.endswith("dense, tuned 3.800.")


def test_a_dense_model_that_is_best_at_the_edge_of_its_grid_may_not_be_tuned_and_that_is_said():
    at_edge = {rate: DENSE[rate] for rate in (-8, -7, -6)}
    answer, _, why = decide({"A": [5, 4, 3, 2]}, dense=at_edge)
    assert answer == UNSURE
    assert "dense, tuned 3.500." in why
    assert why.endswith("The dense model may not be tuned: its best lr of the grid, 2^-6, is an end of the grid.")
    assert decide({"A": [5, 4, 3.9, 3.8]}, dense=at_edge)[0] == NOT


def test_a_dense_model_whose_grids_do_not_meet_at_their_best_values_may_not_be_tuned():
    answer, _, why = decide({"A": [5, 4, 3, 2]}, centre=-7)
    assert answer == UNSURE
    assert why.endswith("its best lr of the grid, 2^-6, is not near 2^-7, at which the other grid was swept.")
    assert decide({"A": [5, 4, 3.9, 3.8]}, centre=-7)[0] == NOT
    nearer = {**DENSE, -6.5: [5, 4, 3.5, 3.4]}
    assert decide({"A": [5, 4, 3, 2]}, dense=nearer)[0] == HOLDS, "half an octave is near"


def test_nothing_is_compared_with_a_dense_model_that_always_diverges():
    answer, number, why = decide({"A": [5, 4, 3, 2]}, lost=set(DENSE))
    assert answer == UNSURE
    assert number.startswith("the dense model diverges at every value")
    assert why.startswith("Final loss: MoE A 2.000; dense, tuned diverges.")


def test_a_race_without_records_is_refused():
    with pytest.raises(
        RunError, match=r"moe: 3 of 3 runs of n_embd 64, n_layer 2, E4A1, alpha_ffn 2.* have no records"
    ):
        decide({"A": [5, 4, 3, 2], "B": []})


def test_speedrun_is_a_race_of_one_model():
    ours, theirs = tables({"E8A2": [5, 4, 3, 2]})
    answer, number, _ = read(speedrun.FINDING.decide({"speedrun": ours, "speedrun-dense": theirs}))
    assert answer == HOLDS
    assert number.count("tuned dense model minus MoE E8A2") == 1


def test_medium_also_compares_its_models_with_each_other():
    ends = {"E4A1": 3.0, "E16A4": 2.9, "E12A1": 2.91}
    ours, theirs = tables({name: [5, 4, 3.5, end] for name, end in ends.items()})
    found = medium.FINDING.decide({"medium": ours, "medium-twelfth": ours, "medium-dense": theirs})
    assert found.answer == HOLDS
    assert found.number.count("tuned dense model minus") == 3
    assert "E4A1 minus E16A4 +0.1000" in found.number
    assert "E16A4 minus E12A1 -0.0100" in found.number


def test_runs_that_diverge_can_be_drawn(drawings):
    drawings()
    decide({"A": [5, 4, None, None]}, {lr: [5, None, None, None] for lr in DENSE}, {"A", *DENSE})
