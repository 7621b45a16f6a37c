import json
import math
from dataclasses import replace

import numpy as np
import pytest
from analysis.surfaces import (
    EXAMPLE,
    exponential,
    make_axis,
    parabola,
    results_of,
    size_of,
    skewed,
    small_study,
    table_of,
)

from expertp.analysis.transfer import doublings_of, judge, judge_curves, tail_of
from expertp.study.cells import sizes
from expertp.study.load import load_study
from expertp.study.spec import ChoiceSpec, VerdictSpec
from expertp.study.table import StudyTable

RULE = VerdictSpec()
HALVES = (-7.0, -6.5, -6.0, -5.5, -5.0)
FINE = "grids.log2_lr=[-7, -6.5, -6, -5.5, -5]"


def verdict_of(study, **changes):
    (seen,) = judge(table_of(study, **changes)).axes
    assert (seen.axis, seen.hp) == ("width", "log2_lr")
    return seen


def at_scale(seen, scale):
    """Return the cost at a size."""
    return next(each for each in seen.costs if each.size.scale == scale)


def test_an_optimum_that_stays_transfers():
    seen = verdict_of(small_study(FINE), optimum=-6.0)
    assert seen.conclusion == "TRANSFERS"
    assert all(each.cost.high <= each.tolerance for each in seen.costs)
    assert seen.drift.low <= 0 <= seen.drift.high
    assert (seen.n_seeds, seen.power, seen.tail) == (3, "no control", 0.025)
    assert "within the tolerance" in seen.reason
    assert all(fit.optimum.value == pytest.approx(-6.0, abs=0.1) for fit in seen.fits.values())


@pytest.mark.parametrize("drift", [0.7, -0.7, -1.0])
def test_an_optimum_that_drifts_fails(drift):
    seen = verdict_of(small_study(), optimum=-6.0, drift=drift)
    assert seen.conclusion == "FAILS"
    assert seen.drift.value == pytest.approx(drift, abs=0.1)
    assert seen.worst.size.scale == 4
    assert "beyond the tolerance" in seen.reason


def test_a_flat_curve_transfers_although_its_optimum_moves():
    """What counts is what a user loses; the sensitivity says that the curve is flat."""
    rng = np.random.default_rng(0)
    axis = make_axis(lambda x: 0.05 * parabola(x), -6.0, 0.3, 0.00003, rng, scales=(1.0, 4.0), grid=HALVES)
    seen = judge_curves(axis, RULE)
    assert seen.conclusion == "TRANSFERS"
    assert seen.drift.low > 0.1
    assert seen.worst.sensitivity.high < RULE.nats


@pytest.mark.heavy
@pytest.mark.parametrize("shape", [parabola, skewed, exponential])
def test_a_cost_of_twice_the_tolerance_hardly_ever_transfers(shape):
    rng, verdicts = np.random.default_rng(0), []
    for _ in range(100):
        away = rng.choice([-1, 1]) * math.sqrt(2 * RULE.nats / 0.04)
        axis = make_axis(shape, -6.0, away / 2, 0.005, rng, scales=(1.0, 4.0), grid=HALVES)
        verdicts.append(judge_curves(axis, RULE).conclusion)
    assert verdicts.count("TRANSFERS") <= 3


@pytest.mark.heavy
@pytest.mark.parametrize("shape", [parabola, skewed, exponential])
def test_no_cost_nearly_always_transfers(shape):
    rng = np.random.default_rng(0)
    axes = [make_axis(shape, -6.0, 0.0, 0.004, rng, scales=(1.0, 4.0), grid=HALVES) for _ in range(100)]
    assert [judge_curves(axis, RULE).conclusion for axis in axes].count("TRANSFERS") >= 90


@pytest.mark.heavy
def test_noisy_surfaces_are_undecided():
    rng = np.random.default_rng(0)
    seen = [judge_curves(make_axis(parabola, -6.0, 0.0, 0.1, rng), RULE).conclusion for _ in range(60)]
    assert seen.count("UNDECIDED") >= 57


@pytest.mark.heavy
def test_the_interval_covers_the_drift():
    rng, n, covered = np.random.default_rng(0), 200, 0
    for surface in range(n):
        shape, drift = (parabola, skewed)[surface % 2], rng.uniform(-0.3, 0.3)
        seen = judge_curves(make_axis(shape, -6.0, drift, 0.005, rng, scales=(1.0, 4.0), grid=HALVES), RULE)
        covered += seen.drift.low <= drift <= seen.drift.high
    assert covered >= 0.9 * n


def test_the_tolerance_grows_with_what_the_size_gains():
    """Every doubling gains 0.1 nats on this surface."""
    seen = verdict_of(small_study(FINE), optimum=-6.0)
    assert [each.gain for each in seen.costs] == pytest.approx([0.1, 0.2], abs=0.01)
    assert [each.tolerance for each in seen.costs] == pytest.approx([0.01, 0.02], abs=0.001)
    strict = verdict_of(small_study(FINE, "verdict.share=1e-6", "verdict.nats=0.003"), optimum=-6.0)
    assert [each.tolerance for each in strict.costs] == [0.003, 0.003]


def test_any_size_that_fails_is_enough():
    """Up and down again: no drift, and yet zero-shot costs much in the middle."""
    rng = np.random.default_rng(0)
    axis = make_axis(parabola, -6.0, 0.0, 0.001, rng, seed_shift=0.001)
    (axis[1],) = make_axis(parabola, -6.0, 1.0, 0.001, rng, scales=(2.0,), seed_shift=0.001)
    seen = judge_curves(axis, RULE)
    assert (seen.conclusion, seen.worst.size) == ("FAILS", size_of(2.0))


def test_a_base_that_is_not_tuned_is_no_failure_of_the_rules():
    seen = verdict_of(small_study(), optimum=-7.2)
    assert seen.conclusion == "UNDECIDED"
    assert "tune the base first" in seen.reason
    assert at_scale(seen, 4).growth.low < 0 < at_scale(seen, 4).growth.high


def test_an_optimum_that_may_lie_beyond_the_grid_is_undecided():
    seen = verdict_of(small_study("grids.log2_lr=[-7, -6, -5.5]"), optimum=-6.0, drift=0.4)
    assert seen.conclusion == "UNDECIDED"
    assert "beyond the values of the grid" in seen.reason
    assert at_scale(seen, 4).cost.high == math.inf


def test_a_bound_can_be_enough_to_fail():
    seen = verdict_of(small_study(), optimum=-6.0, drift=-2)
    assert (seen.conclusion, seen.fits[seen.worst.size].edge) == ("FAILS", "low")
    assert seen.drift.low == -math.inf


def test_all_sizes_are_fitted_at_the_same_values():
    """Runs of the largest size diverge at 2^-5; the value is left out everywhere."""
    wall = lambda run: "diverged" if run.model.n_embd == 256 and run.hps.lr > 2**-5.5 else "finished"  # noqa: E731
    seen = verdict_of(small_study(), optimum=-6.5, status=wall)
    assert {fit.values for fit in seen.fits.values()} == {(-8.0, -7.0, -6.0)}


@pytest.mark.heavy
def test_missing_runs_come_first():
    states = {0: "failed", 1: "unfinished", 2: "missing"}
    for seed, state in states.items():
        seen = verdict_of(
            small_study(),
            drift=-1,
            status=lambda run, seed=seed, state=state: (
                state if (run.train.seed, run.hps.lr) == (seed, 2**-8) else "finished"
            ),
        )
        assert (seen.conclusion, seen.reason) == ("UNDECIDED", "3 of 54 runs have no result")


def test_no_result_at_all_is_undecided():
    seen = judge(StudyTable.join(small_study(), []))
    assert [each.conclusion for each in seen.axes] == ["UNDECIDED"]
    assert math.isnan(seen.axes[0].drift.value)


def test_zero_shot_runs_that_diverge_fail():
    wall = lambda run: "diverged" if run.model.n_embd == 256 and run.hps.lr > 2**-6.5 else "finished"  # noqa: E731
    seen = verdict_of(small_study(), optimum=-6.0, status=wall)
    assert (seen.conclusion, seen.cost.value) == ("FAILS", math.inf)
    assert seen.reason == "zero-shot runs diverge at 4 times the base"


def test_one_diverged_zero_shot_run_of_three_is_no_evidence():
    once = lambda run: (  # noqa: E731
        "diverged" if (run.model.n_embd, run.hps.lr, run.train.seed) == (256, 2**-6, 1) else "finished"
    )
    assert verdict_of(small_study(), optimum=-6.0, status=once).conclusion == "UNDECIDED"


def test_a_base_that_diverges_is_undecided():
    seen = verdict_of(small_study(), status=lambda run: "diverged" if run.model.n_embd == 64 else "finished")
    assert (seen.conclusion, seen.reason) == ("UNDECIDED", "zero-shot runs of the base itself diverge")


def test_a_study_without_a_verdict_still_has_numbers():
    seen = verdict_of(small_study("verdict=null", "seeds=[0]"), optimum=-6.0)
    assert seen.conclusion is None
    assert seen.drift.value == pytest.approx(0, abs=0.1)
    assert all(map(math.isnan, (seen.drift.low, seen.drift.high)))


def test_verdict_json_has_its_keys_and_no_infinity():
    study = small_study()
    results = results_of(study, optimum=-9.5, status=lambda run: "diverged" if run.hps.lr == 2**-4 else "finished")
    results[0] = replace(results[0], status="failed", val_loss=None)
    tree = json.loads(json.dumps(judge(StudyTable.join(study, results)).to_dict(), allow_nan=False))
    assert list(tree) == ["study", "axes", "others", "horizon", "horizon_ci", "diverged", "failed", "missing"]
    assert (tree["study"], tree["diverged"], tree["failed"], tree["missing"]) == ("first", 9, 1, 0)
    (axis,) = tree["axes"]
    assert list(axis) == [
        *("axis", "arm", "verdict", "reason", "sizes", "base_cost", "base_cost_ci", "confidence", "n_seeds"),
        *("hp", "drift", "drift_ci", "power"),
    ]
    assert list(axis["sizes"][0]) == [
        *("scale", "cost", "cost_ci", "growth", "growth_ci", "tolerance", "gain", "sensitivity", "sensitivity_ci"),
    ]
    assert (axis["axis"], axis["hp"], axis["drift_ci"][0], axis["confidence"]) == ("width", "log2_lr", None, 0.95)


def test_every_grid_of_every_axis_is_judged():
    study = small_study("axes={width: [64, 128], depth: {sizes: [2, 4], sweep: [log2_lr]}}")
    judged = [(each.axis, each.hp) for each in judge(table_of(study)).axes]
    assert judged == [("width", "log2_lr"), ("width", "log2_init_std"), ("depth", "log2_lr")]


def test_sizes_at_which_nothing_is_swept_are_not_judged():
    study = small_study("axes={width: {sizes: [64, 128, 256], sweep: [log2_lr], sweep_at: [256]}}")
    assert [each.size.scale for each in verdict_of(study, optimum=-6.0).costs] == [4]


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


def test_joint_growth_is_per_doubling_of_each_dimension():
    study = load_study(
        EXAMPLE,
        ["axes={}", "arms={}", "joint={both: {models: [{n_embd: 128, n_layer: 4}, {n_embd: 256, n_layer: 8}]}}"],
    )
    found = sizes(study, "both")
    assert [size.scale for size in found] == [1, 4, 16]
    assert [doublings_of(size, found) for size in found] == [0, 1, 2]


def test_looks_of_an_adaptive_sweep_share_the_tail():
    def tail(looks):
        choice = ChoiceSpec(axis="width", hp="log2_lr", values=HALVES, seeds=(0, 1), looks=looks)
        return tail_of(small_study().replace(chosen=(choice,)), "width", "log2_lr")

    assert tail(1) == pytest.approx(0.0125)
    assert sum(map(tail, range(1, 200))) < 0.025
