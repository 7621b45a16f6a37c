import json
import math
from dataclasses import replace

import numpy as np
import pytest
from analysis.surfaces import exponential, make_axis, parabola, results_of, skewed, small_study

from expertp.analysis.curves import StudyTable
from expertp.analysis.transfer import judge, judge_axis, judge_curves
from expertp.study import VerdictSpec

RULE = VerdictSpec()


def verdict_of(study, **changes):
    return judge_axis(study, StudyTable(study, results_of(study, **changes)), "width", "log2_lr")


def test_an_optimum_that_stays_is_a_pass():
    seen = verdict_of(small_study())
    assert seen.verdict == "PASS"
    assert -0.25 <= seen.drift_ci[0] <= 0 <= seen.drift_ci[1] <= 0.25
    assert seen.excess_ci[1] <= seen.excess_limit
    assert (seen.edge, seen.needs, seen.n_seeds) == (False, (), 3)
    assert "octaves per doubling" in seen.reason
    assert all(optimum.log2_value == pytest.approx(-6.3, abs=0.05) for optimum in seen.optima.values())


@pytest.mark.parametrize("drift", [0.5, -0.5, -1.0])
def test_an_optimum_that_drifts_is_a_fail(drift):
    seen = verdict_of(small_study(), drift=drift)
    assert seen.verdict == "FAIL"
    assert seen.drift == pytest.approx(drift, abs=0.05)
    assert f"{seen.drift:+.2f} octaves per doubling" in seen.reason


@pytest.mark.parametrize("shape", [parabola, skewed, exponential])
def test_drifting_surfaces_are_hardly_ever_a_pass(shape):
    rng = np.random.default_rng(0)
    verdicts = [
        judge_curves(make_axis(shape, rng.uniform(-7, -6), rng.choice([-0.5, 0.5]), 0.005, rng), RULE).verdict
        for _ in range(60)
    ]
    assert verdicts.count("PASS") == 0
    assert verdicts.count("FAIL") > 40


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_noisy_surfaces_are_inconclusive_and_never_a_pass(noise):
    rng = np.random.default_rng(0)
    seen = [judge_curves(make_axis(parabola, rng.uniform(-7, -6), 0.0, noise, rng), RULE) for _ in range(100)]
    verdicts = [each.verdict for each in seen]
    assert verdicts.count("PASS") == 0
    assert verdicts.count("INCONCLUSIVE") >= 97
    assert all(each.needs for each in seen if each.verdict == "INCONCLUSIVE")


def test_the_intervals_cover_drift_and_excess_in_about_95_of_100_surfaces():
    rng, n, drifts, excesses = np.random.default_rng(0), 500, 0, 0
    for surface in range(n):
        shape, noise = (parabola, skewed)[surface % 2], rng.choice([0.003, 0.01])
        drift = rng.uniform(-0.4, 0.4)
        seen = judge_curves(make_axis(shape, rng.uniform(-7, -6), drift, noise, rng), RULE)
        drifts += seen.drift_ci[0] <= drift <= seen.drift_ci[1]
        excess = shape(np.array(-2 * drift))
        excesses += seen.excess_at[4.0][1] <= excess <= seen.excess_at[4.0][2]
    assert 0.90 * n <= drifts <= 0.99 * n, drifts
    assert 0.90 * n <= excesses <= 0.99 * n, excesses


def test_the_excess_of_an_optimum_that_stays_may_be_zero():
    """Percentiles of the excess itself would never reach down to it."""
    rng = np.random.default_rng(0)
    lows = [judge_curves(make_axis(parabola, -6.3, 0.0, 0.005, rng), RULE).excess_at[4.0][1] for _ in range(40)]
    assert lows.count(0.0) >= 35


def test_the_excess_is_the_loss_at_the_bases_optimum_over_the_best():
    seen = verdict_of(small_study(), drift=0.2, noise=1e-5)
    for scale, doublings in ((2.0, 1), (4.0, 2)):
        assert seen.excess_at[scale][0] == pytest.approx(parabola(0.2 * doublings), abs=1e-4)
    assert seen.excess == seen.excess_at[4.0][0], "the worst size decides"
    assert seen.excess_limit == pytest.approx(2 * seen.noise.seed_sd)


def test_an_excess_alone_is_enough_for_a_fail():
    """Up and down again: no slope, and yet the base's optimum is wrong in the middle."""
    rng = np.random.default_rng(0)
    axis = make_axis(parabola, -7.0, 0.0, 0.001, rng, seed_shift=0.001)
    axis[2.0] = make_axis(parabola, -6.0, 0.0, 0.001, rng, scales=(2.0,), seed_shift=0.001)[2.0]
    seen = judge_curves(axis, RULE)
    assert abs(seen.drift) < 0.05
    assert (seen.verdict, seen.excess) == ("FAIL", seen.excess_at[2.0][0])
    assert "nats more than the best" in seen.reason


@pytest.mark.parametrize(("optimum", "values"), [(-9.5, (-11.0, -10.0)), (-3.5, (-3.0, -2.0))])
def test_an_optimum_on_the_edge_needs_a_wider_grid(optimum, values):
    seen = verdict_of(small_study(), optimum=optimum)
    assert (seen.verdict, seen.edge) == ("INCONCLUSIVE", True)
    assert [(need.kind, need.values) for need in seen.needs] == [("wider", values)]
    assert "edge of the grid" in seen.reason
    assert "`expertp sweep STUDY.yaml --out DIR --refine MINUTES`" in seen.needs[0].text


def test_a_bound_can_be_enough_for_a_fail():
    seen = verdict_of(small_study(), optimum=-6.3, drift=-2)
    assert (seen.verdict, seen.edge) == ("FAIL", True)
    assert seen.drift_ci[0] == -math.inf
    assert seen.drift_ci[1] < -0.25


def test_noise_needs_seeds_that_the_study_does_not_have():
    seen = verdict_of(small_study("seeds=[0, 1, 5]"), noise=0.02)
    assert (seen.verdict, seen.needs[-1].kind) == ("INCONCLUSIVE", "seeds")
    assert seen.needs[-1].seeds[0] == 6
    assert 1 <= len(seen.needs[-1].seeds) <= 6


def test_a_wall_beside_the_optimum_needs_a_finer_grid():
    seen = verdict_of(small_study(), status=lambda run: "diverged" if run.hps.lr > 2**-6 else "finished")
    assert (seen.verdict, seen.edge) == ("INCONCLUSIVE", False)
    assert (seen.needs[0].kind, seen.needs[0].values) == ("finer", (-6.5, -5.5))


def test_refining_settles_what_it_promises_to_settle():
    """The needs go back into the study, as `sweep --refine` does it."""
    study = small_study()
    for kind, start in (("wider", {"optimum": -9.5}), ("seeds", {"noise": 0.02})):
        need = verdict_of(study, **start).needs[-1]
        assert need.kind == kind
        added = f"{{axis: width, hp: log2_lr, values: {list(need.values) or 'null'}, seeds: {list(need.seeds)}}}"
        assert verdict_of(small_study(f"refinements=[{added}]"), **start).verdict == "PASS"


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
        assert (seen.verdict, seen.needs[0].kind) == ("INCONCLUSIVE", "runs")
        assert seen.reason == "3 of 54 runs have no result"


def test_no_result_at_all_is_inconclusive():
    study = small_study()
    seen = judge(study, [])
    assert [each.verdict for each in seen.axes] == ["INCONCLUSIVE"]
    assert math.isnan(seen.axes[0].drift)


def test_a_size_that_always_diverges_is_a_fail():
    seen = verdict_of(small_study(), status=lambda run: "diverged" if run.model.n_embd == 256 else "finished")
    assert (seen.verdict, seen.reason) == ("FAIL", "runs at 4 times the base diverge at every value")
    assert seen.excess == math.inf


def test_a_target_that_diverges_at_the_bases_optimum_is_a_fail():
    """On the target's curve there is no loss where the base has its optimum."""
    wall = lambda run: "diverged" if run.model.n_embd > 64 and run.hps.lr > 2**-8.5 else "finished"  # noqa: E731
    seen = verdict_of(small_study(), status=wall)
    assert (seen.verdict, seen.excess) == ("FAIL", math.inf)


def test_a_base_that_always_diverges_needs_smaller_values():
    seen = verdict_of(small_study(), status=lambda run: "diverged" if run.model.n_embd == 64 else "finished")
    assert (seen.verdict, seen.reason) == ("INCONCLUSIVE", "runs of the base diverge at every value")
    assert seen.needs[0].values == (-11.0, -10.0)


def test_a_study_without_a_verdict_still_has_numbers():
    seen = verdict_of(small_study("verdict=null", "seeds=[0]"))
    assert (seen.verdict, seen.needs) == (None, ())
    assert seen.drift == pytest.approx(0, abs=0.05)
    assert all(map(math.isnan, seen.drift_ci))


def test_the_threshold_is_the_studys():
    assert verdict_of(small_study("verdict.drift=0.6", "verdict.excess_nats=1"), drift=0.5).verdict == "PASS"


def test_verdict_json_has_its_keys_and_no_infinity():
    study = small_study()
    table = results_of(study, optimum=-9.5, status=lambda run: "diverged" if run.hps.lr == 2**-4 else "finished")
    table[0] = replace(table[0], status="failed", val_loss=None)
    tree = json.loads(json.dumps(judge(study, table).to_tree(), allow_nan=False))
    assert list(tree) == ["study", "axes", "diverged", "failed", "missing"]
    assert (tree["study"], tree["diverged"], tree["failed"], tree["missing"]) == ("first", 9, 1, 0)
    (axis,) = tree["axes"]
    assert list(axis) == [
        *("axis", "hp", "verdict", "reason", "drift_octaves_per_doubling", "ci"),
        *("excess", "excess_ci", "edge", "n_seeds", "needs"),
    ]
    assert (axis["axis"], axis["hp"], axis["ci"][0], axis["edge"]) == ("width", "log2_lr", None, True)


def test_every_grid_of_every_axis_is_judged():
    study = small_study("axes={width: [64, 128], depth: {sizes: [2, 4], sweep: [log2_lr]}}")
    judged = [(each.axis, each.hp) for each in judge(study, results_of(study)).axes]
    assert judged == [("width", "log2_lr"), ("width", "log2_init_std"), ("depth", "log2_lr")]
