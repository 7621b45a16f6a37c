import math
from dataclasses import replace

import pytest
from analysis.surfaces import FINE, at_scale, parabola, results_of, small_study

from expertp.analysis.judging import tail_of_look
from expertp.analysis.transfer import judge
from expertp.study.spec import ChoiceSpec
from expertp.study.table import StudyTable


def test_an_axis_with_zero_shot_runs_only_judges_other_arms():
    study = small_study("axes={width: {sizes: [64, 256], sweep_at: []}}", "arms={sp: {axes: [width]}}")
    results = [
        replace(each, val_loss=each.val_loss + 0.3 * (each.run.model.n_embd == 256) * (each.run.hps.rules == "sp"))
        for each in results_of(study, optimum=-6.0)
    ]
    found = judge(StudyTable.join(study, results))
    assert found.axes == ()
    (sp,) = found.others
    assert (sp.conclusion, round(sp.cost.value, 2)) == ("FAILS", 0.3)
    assert sp.worst.gain == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize(
    ("behind", "conclusion", "power"), [(0.5, "FAILS", "control fails"), (0.0, "TRANSFERS", "NO POWER")]
)
def test_an_arm_that_is_not_retuned_is_judged_by_the_best_of_the_studys_own(behind, conclusion, power):
    study = small_study(FINE, "arms={sp: {axes: [width], control: [width]}}", "verdict.nats=0.02")
    results = [
        replace(each, val_loss=each.val_loss + behind * (each.run.model.n_embd == 256) * (each.run.hps.rules == "sp"))
        for each in results_of(study, optimum=-6.0)
    ]
    found = judge(StudyTable.join(study, results))
    (sp,) = found.others
    assert (sp.axis, sp.arm.name, sp.conclusion) == ("width", "sp", conclusion)
    assert at_scale(sp, 4).cost.value == pytest.approx(behind, abs=0.01)
    assert found.axes[0].power == power


@pytest.mark.parametrize("rules", ["sp", "expertp"])
def test_an_arm_is_undecided_where_fewer_zero_shot_runs_diverge_than_half(rules):
    study = small_study(FINE, "axes={width: {sizes: [64, 256], sweep: [log2_lr]}}", "arms={sp: {axes: [width]}}")
    is_lost = lambda run: run.hps.rules == rules and run.model.n_embd == 256 and run.train.seed == 1  # noqa: E731
    at_zero = lambda run: is_lost(run) and run.hps.lr == study.hps.lr  # noqa: E731
    results = results_of(study, optimum=-6.0, status=lambda run: "diverged" if at_zero(run) else "finished")
    (sp,) = judge(StudyTable.join(study, results)).others
    words = f"1 of 3 zero-shot runs of {rules} diverge at 4 times the base"
    assert (sp.conclusion, sp.reason) == ("UNDECIDED", words)
    assert not sp.cost.is_known


def test_an_arm_with_one_seed_at_a_size_is_undecided():
    """The base has all seeds and the larger size one: the difference has no interval."""
    study = small_study(FINE, "axes={width: {sizes: [64, 256], sweep: [log2_lr]}}", "arms={sp: {axes: [width]}}")
    is_lost = lambda run: run.hps.rules == "sp" and run.model.n_embd == 256 and run.train.seed > 0  # noqa: E731
    results = results_of(study, optimum=-6.0, status=lambda run: "failed" if is_lost(run) else "finished")
    (sp,) = judge(StudyTable.join(study, results)).others
    assert (sp.conclusion, sp.reason) == ("UNDECIDED", "some zero-shot runs have no result")
    assert math.isnan(sp.cost.high)


def test_a_retuned_arm_is_judged_by_its_own_optimum():
    study = small_study("arms={sp: {axes: [width], retune: {width: [64, 256]}, control: [width]}}")
    results = []
    for each in results_of(study, optimum=-6.0):
        is_wide_sp = each.run.hps.rules == "sp" and each.run.model.n_embd == 256
        moved = parabola(math.log2(each.run.hps.lr) + 8) - parabola(math.log2(each.run.hps.lr) + 6)
        results.append(replace(each, val_loss=each.val_loss + moved * is_wide_sp))
    found = judge(StudyTable.join(study, results))
    (sp,) = found.others
    assert (sp.hp, sp.conclusion) == ("log2_lr", "FAILS")
    assert sp.cost.value == pytest.approx(parabola(2.0), rel=0.05)
    assert found.axes[0].power == "control fails"


def behind_by(study, nats, spread):
    """Return a table in which `sp` is behind at larger sizes, by an amount that varies with the seed."""
    results = [
        replace(each, val_loss=each.val_loss + (nats + spread * (each.run.train.seed - 1)) * is_behind)
        for each in results_of(study, optimum=-6.0)
        for is_behind in [each.run.hps.rules == "sp" and each.run.model.n_embd > 64]
    ]
    return StudyTable.join(study, results)


def test_the_intervals_of_an_arm_allow_for_all_looks_on_its_axis():
    study = small_study(FINE, "axes={width: {sizes: [64, 256]}}", "arms={sp: {axes: [width]}}")
    choice = ChoiceSpec(axis="width", hp="log2_lr", values=study.grids.log2_lr, seeds=study.seeds, looks=3)
    init = ChoiceSpec(axis="width", hp="log2_init_std", values=(-5, -4, -3), seeds=study.seeds, looks=2)
    (plain,) = judge(behind_by(study, 0.5, 0.02)).others
    (adaptive,) = judge(behind_by(study.replace(chosen=(choice, init)), 0.5, 0.02)).others
    assert (plain.tail, adaptive.tail) == (0.025, tail_of_look(4))
    assert adaptive.to_dict()["confidence"] == 0.9975
    assert adaptive.cost.high - adaptive.cost.low > 2 * (plain.cost.high - plain.cost.low)


def test_the_growth_of_an_arm_is_corrected_for_several_sizes():
    sizes = ("[64, 256]", "[64, 128, 256]")
    studies = [
        small_study(FINE, f"axes={{width: {{sizes: {each}, sweep: [log2_lr]}}}}", "arms={sp: {axes: [width]}}")
        for each in sizes
    ]
    one, two = (at_scale(judge(behind_by(study, 0.5, 0.02)).others[0], 4).growth for study in studies)
    assert two.high - two.low > 1.2 * (one.high - one.low)


def test_the_noise_of_an_arm_is_pooled_over_all_its_axes():
    study = small_study(
        FINE,
        "axes={width: {sizes: [64, 256], sweep: [log2_lr]}, depth: {sizes: [2, 4], sweep: [log2_lr]}}",
        "arms={sp: {axes: [width, depth], retune: {width: [64, 256], depth: [2, 4]}}}",
    )
    width, depth = judge(StudyTable.join(study, results_of(study, optimum=-6.0))).others
    assert width.noise == depth.noise
