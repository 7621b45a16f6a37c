from dataclasses import replace

from analysis.surfaces import results_of, small_study

from expertp.analysis.transfer import judge
from expertp.report.summary import summarize_study
from expertp.study.table import StudyTable
from expertp.util.statistics import Estimate

FINE = "grids.log2_lr=[-7, -6.5, -6, -5.5, -5]"
AXES = "axes={width: {sizes: [64, 256], sweep: [log2_lr]}, depth: {sizes: [2, 8], sweep: [log2_lr], sweep_at: []}}"


def verdict_of(*overrides, behind=0.0, ahead=0.0, **surface):
    study = small_study(FINE, AXES, "arms={sp: {axes: [width, depth]}}", *overrides)
    results = []
    for each in results_of(study, **surface):
        is_sp, model = each.run.hps.rules == "sp", each.run.model
        off = is_sp * (behind * (model.n_embd == 256) - ahead * (model.n_layer == 8))
        results.append(replace(each, val_loss=each.val_loss + off))
    return judge(StudyTable.join(study, results))


def sentences(*overrides, **surface):
    return summarize_study(verdict_of(*overrides, **surface))


def test_a_study_that_transfers_says_what_it_costs_and_what_sp_would_have_cost():
    first, cost, sp, better = sentences(optimum=-6.0, behind=0.7, ahead=0.2)
    assert first == "TRANSFERS: What was tuned at the base holds at the larger sizes along width."
    assert cost.startswith("There, the base's values cost about 0.00")
    assert cost.endswith("the larger models gain 0.199 nats over the base.")
    assert sp == "FAILS: with sp instead, the same values cost 0.700 along width (nats)."
    assert better.startswith("sp is ahead, zero-shot to zero-shot, by 0.20")
    assert better.endswith("along depth (nats).")


def test_the_cost_is_said_with_the_end_of_its_interval_and_its_confidence():
    seen = verdict_of(optimum=-6.0, noise=0.004)
    (verdict,) = seen.axes
    assert verdict.conclusion == "TRANSFERS"
    (size,) = verdict.costs
    assert size.cost.high > size.cost.value + 0.0005, "the estimate is no bound"
    said = f"cost about {size.cost.value:.4f} nats more than tuning again (at most {size.cost.high:.4f}, with 95%"
    assert said in summarize_study(seen)[1]


def test_of_several_curves_the_largest_bound_and_the_lowest_confidence_are_said():
    seen = verdict_of(optimum=-6.0, noise=0.004)
    (verdict,) = seen.axes
    (size,) = verdict.costs
    other = replace(verdict, tail=0.0125, costs=(replace(size, cost=Estimate(0.0004, 0.0, 0.0107), gain=0.1),))
    cost = summarize_study(replace(seen, axes=(verdict, other)))[1]
    estimates = " to ".join(f"{each:.4f}" for each in sorted([0.0004, size.cost.value]))
    assert f"cost about {estimates} nats more than tuning again (at most 0.0107, with 95% confidence)" in cost
    assert "97.5% confidence" in summarize_study(replace(seen, axes=(other,)))[1]


def test_an_arm_is_ahead_by_its_zero_shot_loss_although_the_own_arm_has_a_lower_one():
    """Zero-shot of the study's own arm lies 0.04 nats above its lowest loss, and sp 0.02 nats below zero-shot."""
    study = small_study(FINE, "axes={width: {sizes: [64, 256], sweep: [log2_lr]}}", "arms={sp: {axes: [width]}}")
    results = []
    for each in results_of(study, optimum=-6.0, drift=0.5, noise=0.0005):
        ahead = 0.02 * (each.run.hps.rules == "sp" and each.run.model.n_embd == 256)
        results.append(replace(each, val_loss=each.val_loss - ahead))
    seen = judge(StudyTable.join(study, results))
    assert seen.others[0].cost.low > 0
    assert summarize_study(seen)[-1].startswith("sp is ahead, zero-shot to zero-shot, by 0.0")


def test_a_control_that_does_not_fail_is_said():
    control = "arms={sp: {axes: [width, depth], control: [width]}}"
    sentence = "NO POWER: The control does not fail along width, so the verdicts there do not tell the rules from it."
    assert sentence in sentences(control, optimum=-6.0)
    assert sentence not in sentences(control, optimum=-6.0, behind=0.7)


def test_what_fails_or_is_undecided_is_said():
    assert sentences(optimum=-6.0, drift=1.0)[0] == "FAILS: What was tuned at the base does not hold along width."
    undecided = sentences(optimum=-6.0, noise=0.1)
    assert undecided[0] == "UNDECIDED: Whether it holds along width is undecided."


def test_a_study_without_verdicts_has_no_summary():
    assert sentences("verdict=null", optimum=-6.0) == ()
