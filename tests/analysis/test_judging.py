import math
from dataclasses import replace

import numpy as np
import pytest
from analysis.surfaces import EXAMPLE, exponential, make_axis, parabola, size_of, skewed, small_study

from expertp.analysis.judging import doublings_of, judge_curves, tail_of
from expertp.study.cells import sizes
from expertp.study.load import load_study
from expertp.study.spec import ChoiceSpec, VerdictSpec

RULE = VerdictSpec()
HALVES = (-7.0, -6.5, -6.0, -5.5, -5.0)


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


def test_any_size_that_fails_is_enough():
    """Up and down again: no drift, and yet zero-shot costs much in the middle."""
    rng = np.random.default_rng(0)
    axis = make_axis(parabola, -6.0, 0.0, 0.001, rng, seed_shift=0.001)
    (axis[1],) = make_axis(parabola, -6.0, 1.0, 0.001, rng, scales=(2.0,), seed_shift=0.001)
    seen = judge_curves(axis, RULE)
    assert (seen.conclusion, seen.worst.size) == ("FAILS", size_of(2.0))


def diverging(curve, seeds):
    """Return a curve whose zero-shot runs of some seeds have diverged."""
    at = curve.log2_values.index(curve.centre)
    row = tuple(math.inf if seed in seeds else loss for seed, loss in enumerate(curve.losses[at]))
    return replace(curve, losses=(*curve.losses[:at], row, *curve.losses[at + 1 :]))


@pytest.mark.parametrize(
    ("seeds", "conclusion", "reason"),
    [
        ((1,), "UNDECIDED", "1 of 3 zero-shot runs diverge at 4 times the base"),
        ((0, 1), "FAILS", "zero-shot runs diverge at 4 times the base"),
    ],
)
def test_fewer_diverged_zero_shot_runs_than_half_leave_the_verdict_open(seeds, conclusion, reason):
    """The four other values of the grid are enough for a fit, and the seeds that are left say TRANSFERS."""
    base, large = make_axis(parabola, -6.0, 0.0, 0.001, np.random.default_rng(0), scales=(1.0, 4.0), grid=HALVES)
    assert judge_curves([base, large], RULE).conclusion == "TRANSFERS"
    seen = judge_curves([base, diverging(large, seeds)], RULE)
    assert (seen.conclusion, seen.reason) == (conclusion, reason)
    at_base = judge_curves([diverging(base, (1,)), large], RULE)
    assert (at_base.conclusion, at_base.reason) == ("UNDECIDED", "1 of 3 zero-shot runs of the base itself diverge")


def test_another_size_still_fails_where_some_zero_shot_runs_diverge():
    rng = np.random.default_rng(0)
    base, middle = make_axis(parabola, -6.0, 0.0, 0.001, rng, scales=(1.0, 2.0), grid=HALVES)
    (large,) = make_axis(parabola, -6.0, 0.5, 0.001, rng, scales=(4.0,), grid=(-7.0, -6.5, -6.0, -5.5, -5.0, -4.0))
    seen = judge_curves([base, diverging(middle, (1,)), large], RULE)
    assert (seen.conclusion, seen.worst.size) == ("FAILS", size_of(4.0))


def test_all_sizes_are_fitted_at_the_same_values_unless_a_minimum_lies_at_the_end_of_the_window():
    grid = tuple(np.arange(-10.0, -2.9, 0.5).tolist())

    def values_of(drift):
        axis = make_axis(parabola, -6.0, drift, 0.001, np.random.default_rng(0), scales=(1.0, 4.0), grid=grid)
        seen = judge_curves(axis, RULE)
        return seen.conclusion, [(fit.values[0], fit.values[-1]) for fit in seen.fits.values()]

    assert values_of(0.9) == ("FAILS", [(-8.0, -4.0)] * 2)
    assert values_of(1.2) == ("FAILS", [(-8.0, -4.0), (-7.5, -3.5)])


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
