import json
import math
from dataclasses import replace

import pytest
from analysis.surfaces import FINE, at_scale, parabola, results_of, small_study, table_of

from expertp.analysis.judging import tail_of_look
from expertp.analysis.transfer import judge
from expertp.study.spec import ChoiceSpec
from expertp.study.table import StudyTable


def verdict_of(study, **changes):
    (seen,) = judge(table_of(study, **changes)).axes
    assert (seen.axis, seen.hp) == ("width", "log2_lr")
    return seen


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


def test_the_tolerance_grows_with_what_the_size_gains():
    """Every doubling gains 0.1 nats on this surface."""
    seen = verdict_of(small_study(FINE), optimum=-6.0)
    assert [each.gain for each in seen.costs] == pytest.approx([0.1, 0.2], abs=0.01)
    assert [each.tolerance for each in seen.costs] == pytest.approx([0.01, 0.02], abs=0.001)
    strict = verdict_of(small_study(FINE, "verdict.share=1e-6", "verdict.nats=0.003"), optimum=-6.0)
    assert [each.tolerance for each in strict.costs] == [0.003, 0.003]


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


def test_values_at_which_runs_were_stopped_are_left_out_at_their_size_and_counted():
    """Runs of the largest size are stopped at 2^-4; the verdict is decided without them."""
    lost = lambda run: "stopped" if run.model.n_embd == 256 and run.hps.lr > 2**-4.5 else "finished"  # noqa: E731
    seen = verdict_of(small_study(), optimum=-6.0, status=lost)
    assert {size.scale: fit.values[-1] for size, fit in seen.fits.items()} == {1: -4, 2: -4, 4: -5}
    assert seen.conclusion == "TRANSFERS"
    assert judge(table_of(small_study(), optimum=-6.0, status=lost)).stopped == 3


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
    assert (seen.conclusion, seen.reason) == ("UNDECIDED", "3 of 3 zero-shot runs of the base itself diverge")


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
    counts = ("diverged", "stopped", "failed", "missing")
    assert list(tree) == ["study", "axes", "others", "horizon", "horizon_ci", *counts]
    assert (tree["study"], tree["diverged"], tree["failed"], tree["missing"]) == ("first", 9, 1, 0)
    (axis,) = tree["axes"]
    assert list(axis) == [
        *("axis", "arm", "verdict", "reason", "sizes", "base_cost", "base_cost_ci", "confidence", "n_seeds"),
        *("hp", "drift", "drift_ci", "power"),
    ]
    assert list(axis["sizes"][0]) == [
        *("scale", "cost", "cost_ci", "growth", "growth_ci", "tolerance", "gain", "sensitivity", "sensitivity_ci"),
        *("gap", "gap_ci"),
    ]
    assert (axis["axis"], axis["hp"], axis["drift_ci"][0], axis["confidence"]) == ("width", "log2_lr", None, 0.95)


def test_every_grid_of_every_axis_is_judged():
    study = small_study("axes={width: [64, 128], depth: {sizes: [2, 4], sweep: [log2_lr]}}")
    judged = [(each.axis, each.hp) for each in judge(table_of(study)).axes]
    assert judged == [("width", "log2_lr"), ("width", "log2_init_std"), ("depth", "log2_lr")]


def test_sizes_at_which_nothing_is_swept_are_not_judged():
    study = small_study("axes={width: {sizes: [64, 128, 256], sweep: [log2_lr], sweep_at: [256]}}")
    assert [each.size.scale for each in verdict_of(study, optimum=-6.0).costs] == [4]


LR = ChoiceSpec(axis="width", hp="log2_lr", values=(-7, -6.5, -6, -5.5, -5), seeds=(0, 1))
INIT = ChoiceSpec(axis="width", hp="log2_init_std", values=(-5, -4.5, -4, -3.5, -3), seeds=(0, 1))
BOTH = ("axes={width: {sizes: [64, 256]}}", "seeds=[0, 1]", FINE, "grids.log2_init_std=[-5, -4.5, -4, -3.5, -3]")


@pytest.mark.parametrize("retune", ["", "retune: {width: [64, 256]}, "])
def test_time_that_ends_in_the_middle_of_a_look_takes_nothing_from_verdicts_that_are_decided(retune):
    """The look adds a seed for init std; its runs, the zero-shot runs of all arms among them, have not begun."""
    study = small_study(*BOTH, f"arms={{sp: {{axes: [width], {retune}control: [width]}}}}")
    before = study.replace(chosen=(LR, INIT))
    grown = study.replace(chosen=(LR, INIT.replace(seeds=(0, 1, 2), looks=2, before=INIT)))
    results = []
    for each in results_of(before, optimum=-6.0):
        is_wide_sp, octave = each.run.hps.rules == "sp" and each.run.model.n_embd == 256, math.log2(each.run.hps.lr)
        results.append(
            replace(each, val_loss=each.val_loss + (parabola(octave + 9) - parabola(octave + 6)) * is_wide_sp)
        )
    seen, cut = (judge(StudyTable.join(each, results)) for each in (before, grown))
    assert [each.to_dict() for each in (*cut.axes, *cut.others)] == [
        each.to_dict() for each in (*seen.axes, *seen.others)
    ]
    assert (cut.axes[0].conclusion, cut.axes[0].power) == ("TRANSFERS", "control fails")
    assert cut.missing > 0


def test_a_look_that_is_complete_counts_although_another_is_not():
    study = small_study(*BOTH)
    lr = LR.replace(seeds=(0, 1, 2, 3), looks=2, before=LR)
    init = INIT.replace(values=(*INIT.values, -2.5), looks=2, before=INIT)
    grown = study.replace(chosen=(lr, init))
    results = [each for each in results_of(grown, optimum=-6.0) if each.run.hps.init_std != 2.0**-2.5]
    seen = judge(StudyTable.join(grown, results)).axes
    assert [each.tail for each in seen] == [tail_of_look(2), tail_of_look(1)]
    assert seen[0].conclusion == "TRANSFERS"


def test_a_failed_zero_shot_run_of_a_seed_that_only_another_curve_has_is_not_missed():
    study = small_study(*BOTH).replace(chosen=(LR, INIT.replace(seeds=(0, 1, 2))))
    is_lost = lambda run: (run.train.seed, run.hps.lr) == (2, 2.0**-6)  # noqa: E731
    lr, init = judge(table_of(study, optimum=-6.0, status=lambda run: "failed" if is_lost(run) else "finished")).axes
    assert lr.conclusion == "TRANSFERS"
    assert "runs have no result" in init.reason
