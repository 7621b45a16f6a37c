import json
import math
from dataclasses import replace

import numpy as np
import pytest
from analysis.surfaces import exponential, make_axis, parabola, results_of, size_of, skewed, small_study, table_of

from expertp.analysis.transfer import judge, judge_curves
from expertp.study.spec import VerdictSpec
from expertp.study.table import StudyTable

RULE = VerdictSpec()


def verdict_of(study, **changes):
    (seen,) = judge(table_of(study, **changes)).axes
    assert (seen.axis, seen.hp) == ("width", "log2_lr")
    return seen


def at_scale(seen, scale):
    """Return the excess at a size."""
    return next(excess for size, excess in seen.excess_at.items() if size.scale == scale)


def test_an_optimum_that_stays_is_a_pass():
    seen = verdict_of(small_study())
    assert seen.conclusion == "PASS"
    assert -0.25 <= seen.drift.low <= 0 <= seen.drift.high <= 0.25
    assert seen.excess.high <= seen.excess_limit
    assert (seen.edge, seen.remedies, seen.n_seeds) == (False, (), 3)
    assert "octaves per doubling" in seen.reason
    assert all(optimum.at.value == pytest.approx(-6.3, abs=0.05) for optimum in seen.optima.values())


@pytest.mark.parametrize("drift", [0.5, -0.5, -1.0])
def test_an_optimum_that_drifts_is_a_fail(drift):
    seen = verdict_of(small_study(), drift=drift)
    assert seen.conclusion == "FAIL"
    assert seen.drift.value == pytest.approx(drift, abs=0.05)
    assert f"{seen.drift.value:+.2f} octaves per doubling" in seen.reason


@pytest.mark.heavy
@pytest.mark.parametrize("shape", [parabola, skewed, exponential])
def test_drifting_surfaces_are_hardly_ever_a_pass(shape):
    rng = np.random.default_rng(0)
    verdicts = [
        judge_curves(make_axis(shape, rng.uniform(-7, -6), rng.choice([-0.5, 0.5]), 0.005, rng), RULE).conclusion
        for _ in range(60)
    ]
    assert verdicts.count("PASS") == 0
    assert verdicts.count("FAIL") > 40


@pytest.mark.heavy
@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_noisy_surfaces_are_inconclusive_and_never_a_pass(noise):
    rng = np.random.default_rng(0)
    seen = [judge_curves(make_axis(parabola, rng.uniform(-7, -6), 0.0, noise, rng), RULE) for _ in range(100)]
    verdicts = [each.conclusion for each in seen]
    assert verdicts.count("PASS") == 0
    assert verdicts.count("INCONCLUSIVE") >= 97
    assert all(each.remedies for each in seen if each.conclusion == "INCONCLUSIVE")


@pytest.mark.heavy
def test_the_intervals_cover_drift_and_excess_in_about_95_of_100_surfaces():
    rng, n, drifts, excesses = np.random.default_rng(0), 500, 0, 0
    for surface in range(n):
        shape, noise = (parabola, skewed)[surface % 2], rng.choice([0.003, 0.01])
        drift = rng.uniform(-0.4, 0.4)
        seen = judge_curves(make_axis(shape, rng.uniform(-7, -6), drift, noise, rng), RULE)
        drifts += seen.drift.low <= drift <= seen.drift.high
        excess = shape(np.array(-2 * drift))
        excesses += at_scale(seen, 4).low <= excess <= at_scale(seen, 4).high
    assert 0.90 * n <= drifts <= 0.99 * n, drifts
    assert 0.90 * n <= excesses <= 0.99 * n, excesses


@pytest.mark.heavy
def test_the_excess_of_an_optimum_that_stays_may_be_zero():
    """Percentiles of the excess itself would never reach down to it."""
    rng = np.random.default_rng(0)
    lows = [at_scale(judge_curves(make_axis(parabola, -6.3, 0.0, 0.005, rng), RULE), 4).low for _ in range(40)]
    assert lows.count(0.0) >= 35


def test_the_excess_is_the_loss_at_the_bases_optimum_over_the_best():
    seen = verdict_of(small_study(), drift=0.2, noise=1e-5)
    for scale, doublings in ((2.0, 1), (4.0, 2)):
        assert at_scale(seen, scale).value == pytest.approx(parabola(0.2 * doublings), abs=1e-4)
    assert seen.excess == at_scale(seen, 4), "the worst size decides"
    assert seen.excess_limit == pytest.approx(2 * seen.noise.seed_sd)


def test_an_excess_alone_is_enough_for_a_fail():
    """Up and down again: no slope, and yet the base's optimum is wrong in the middle."""
    rng = np.random.default_rng(0)
    axis = make_axis(parabola, -7.0, 0.0, 0.001, rng, seed_shift=0.001)
    (axis[1],) = make_axis(parabola, -6.0, 0.0, 0.001, rng, scales=(2.0,), seed_shift=0.001)
    seen = judge_curves(axis, RULE)
    assert abs(seen.drift.value) < 0.05
    assert (seen.conclusion, seen.excess) == ("FAIL", seen.excess_at[size_of(2.0)])
    assert "nats more than the best" in seen.reason


@pytest.mark.parametrize(("optimum", "values"), [(-9.5, (-11.0, -10.0)), (-3.5, (-3.0, -2.0))])
def test_an_optimum_on_the_edge_remedies_a_wider_grid(optimum, values):
    seen = verdict_of(small_study(), optimum=optimum)
    assert (seen.conclusion, seen.edge) == ("INCONCLUSIVE", True)
    assert [(remedy.kind, remedy.values) for remedy in seen.remedies] == [("wider", values)]
    assert "edge of the grid" in seen.reason


def test_a_bound_can_be_enough_for_a_fail():
    seen = verdict_of(small_study(), optimum=-6.3, drift=-2)
    assert (seen.conclusion, seen.edge) == ("FAIL", True)
    assert seen.drift.low == -math.inf
    assert seen.drift.high < -0.25


def test_noise_remedies_seeds_that_the_study_does_not_have():
    seen = verdict_of(small_study("seeds=[0, 1, 5]"), noise=0.02)
    assert (seen.conclusion, seen.remedies[-1].kind) == ("INCONCLUSIVE", "seeds")
    assert seen.remedies[-1].seeds[0] == 6
    assert 1 <= len(seen.remedies[-1].seeds) <= 6


def test_a_wall_beside_the_optimum_remedies_a_finer_grid():
    seen = verdict_of(small_study(), status=lambda run: "diverged" if run.hps.lr > 2**-6 else "finished")
    assert (seen.conclusion, seen.edge) == ("INCONCLUSIVE", False)
    assert (seen.remedies[0].kind, seen.remedies[0].values) == ("finer", (-6.5, -5.5))


@pytest.mark.heavy
def test_refining_settles_what_it_promises_to_settle():
    """The remedies go back into the study, as `sweep --refine` does it."""
    study = small_study()
    for kind, start in (("wider", {"optimum": -9.5}), ("seeds", {"noise": 0.02})):
        remedy = verdict_of(study, **start).remedies[-1]
        assert remedy.kind == kind
        added = f"{{axis: width, hp: log2_lr, values: {list(remedy.values) or 'null'}, seeds: {list(remedy.seeds)}}}"
        assert verdict_of(small_study(f"refinements=[{added}]"), **start).conclusion == "PASS"


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
        assert (seen.conclusion, seen.remedies[0].kind) == ("INCONCLUSIVE", "runs")
        assert (seen.remedies[0].runs, seen.reason) == (3, "3 of 54 runs have no result")


def test_no_result_at_all_is_inconclusive():
    seen = judge(StudyTable.join(small_study(), []))
    assert [each.conclusion for each in seen.axes] == ["INCONCLUSIVE"]
    assert math.isnan(seen.axes[0].drift.value)


def test_a_size_that_always_diverges_is_a_fail():
    seen = verdict_of(small_study(), status=lambda run: "diverged" if run.model.n_embd == 256 else "finished")
    assert seen.conclusion == "FAIL"
    assert "4 times the base diverge" in seen.reason
    assert seen.excess.value == math.inf


def test_a_target_that_diverges_at_the_bases_optimum_is_a_fail():
    """On the target's curve there is no loss where the base has its optimum."""
    wall = lambda run: "diverged" if run.model.n_embd > 64 and run.hps.lr > 2**-8.5 else "finished"  # noqa: E731
    seen = verdict_of(small_study(), status=wall)
    assert (seen.conclusion, seen.excess.value) == ("FAIL", math.inf)


def test_a_base_that_always_diverges_remedies_smaller_values():
    seen = verdict_of(small_study(), status=lambda run: "diverged" if run.model.n_embd == 64 else "finished")
    assert seen.conclusion == "INCONCLUSIVE"
    assert "runs of the base diverge" in seen.reason
    assert seen.remedies[0].values == (-11.0, -10.0)


def test_a_study_without_a_verdict_still_has_numbers():
    seen = verdict_of(small_study("verdict=null", "seeds=[0]"))
    assert (seen.conclusion, seen.remedies) == (None, ())
    assert seen.drift.value == pytest.approx(0, abs=0.05)
    assert all(map(math.isnan, (seen.drift.low, seen.drift.high)))


def test_the_threshold_is_the_studys():
    assert verdict_of(small_study("verdict.drift=0.6", "verdict.excess_nats=1"), drift=0.5).conclusion == "PASS"


def test_verdict_json_has_its_keys_and_no_infinity():
    study = small_study()
    results = results_of(study, optimum=-9.5, status=lambda run: "diverged" if run.hps.lr == 2**-4 else "finished")
    results[0] = replace(results[0], status="failed", val_loss=None)
    tree = json.loads(json.dumps(judge(StudyTable.join(study, results)).to_dict(), allow_nan=False))
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
    judged = [(each.axis, each.hp) for each in judge(table_of(study)).axes]
    assert judged == [("width", "log2_lr"), ("width", "log2_init_std"), ("depth", "log2_lr")]
