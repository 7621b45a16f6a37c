import math
from dataclasses import replace

import numpy as np
import pytest
from analysis.surfaces import GRID, RISE, exponential, make_axis, make_curve, parabola, skewed

from expertp.analysis.curve_fit import DRAWS, CurveFit, Drawn, Noise, fit_curve, pooled_noise
from expertp.util.statistics import Estimate

NO_NOISE = Noise(sd=1e-6, dof=20)
HALVES = (-7.0, -6.5, -6.0, -5.5, -5.0)


def exact(shape, optimum, **changes):
    return make_curve(shape, optimum, 0.0, np.random.default_rng(0), **changes)


@pytest.mark.parametrize(("shape", "within"), [(parabola, 0.02), (skewed, 0.04), (exponential, 0.06)])
@pytest.mark.parametrize("optimum", [-6.9, -6.25, -6.0, -5.6])
def test_the_optimum_lies_where_the_surface_has_it(shape, within, optimum):
    found = fit_curve(exact(shape, optimum), NO_NOISE)
    assert found.optimum.value == pytest.approx(optimum, abs=within)
    assert found.edge is None


@pytest.mark.parametrize("shape", [parabola, skewed])
@pytest.mark.parametrize("optimum", [-6.5, -5.7])
def test_the_cost_is_the_loss_at_the_zero_shot_value_over_the_lowest(shape, optimum):
    found = fit_curve(exact(shape, optimum), NO_NOISE)
    assert found.curve.centre == -6
    cost = found.cost_estimate()
    assert cost.value == pytest.approx(shape(-6 - optimum), abs=6e-4)
    assert cost.low <= shape(-6 - optimum) <= cost.high


def test_loss_sensitivity_and_curvature_are_those_of_the_surface():
    found = fit_curve(exact(parabola, -6.3, seed_shift=0.0), NO_NOISE)
    assert found.loss == pytest.approx(3.0, abs=1e-5)
    assert found.sensitivity.value == pytest.approx(RISE, rel=0.02)
    assert found.curvature == pytest.approx(RISE, rel=0.02)


@pytest.mark.heavy
@pytest.mark.parametrize(("shape", "noise"), [(parabola, 0.005), (skewed, 0.003)], ids=["symmetric", "skewed"])
def test_intervals_cover_optimum_and_cost_in_at_least_90_of_100_surfaces(shape, noise):
    """Higher coefficients are mostly smaller than their prior allows, so that intervals are cautious."""
    rng, n, optima, costs = np.random.default_rng(0), 300, 0, 0
    for surface in range(n):
        optimum = rng.uniform(-6.6, -5.4)
        axis = [make_curve(shape, optimum, noise, rng, grid=HALVES) for _ in range(3)]
        found = fit_curve(axis[0], pooled_noise(axis), seed=surface)
        at, cost = found.optimum_estimate(), found.cost_estimate()
        optima += at.low <= optimum <= at.high
        costs += cost.low <= shape(-6 - optimum) <= cost.high
    assert 0.90 * n <= optima, optima
    assert 0.90 * n <= costs, costs


def test_a_cost_of_zero_is_in_its_interval():
    """Percentiles of the cost itself would never reach down to it."""
    rng = np.random.default_rng(0)
    axes = [[make_curve(parabola, -6.0, 0.005, rng, grid=HALVES) for _ in range(2)] for _ in range(40)]
    lows = [fit_curve(axis[0], pooled_noise(axis)).cost_estimate().low for axis in axes]
    assert lows.count(0.0) >= 35


def test_pooled_noise_is_that_of_a_run_and_not_of_the_seeds_shift():
    rng = np.random.default_rng(0)
    curves = [make_curve(parabola, -6.3, 0.005, rng, seed_shift=0.1) for _ in range(200)]
    noise = pooled_noise(curves)
    assert noise.sd == pytest.approx(0.005, rel=0.05)
    assert noise.dof == 200 * 2 * 2  # the three values within an octave, three seeds


def test_values_far_from_the_zero_shot_value_have_no_say_in_the_noise():
    curve = exact(parabola, -6.3)
    wild = [
        tuple(np.add(losses, [-0.3, 0.0, 0.3])) if x < -7 else losses
        for x, losses in zip(GRID, curve.losses, strict=True)
    ]
    assert pooled_noise([replace(curve, losses=tuple(wild))]).sd < 1e-5


@pytest.mark.parametrize(("optimum", "edge", "end"), [(-9.4, "low", -9.0), (-11.0, "low", -9.0), (-3.0, "high", -4.0)])
def test_an_optimum_beyond_the_grid_is_a_bound_and_its_cost_has_no_upper_end(optimum, edge, end):
    found = fit_curve(exact(parabola, optimum), NO_NOISE)
    at, cost = found.optimum_estimate(), found.cost_estimate()
    assert (found.edge, at.value) == (edge, end)
    assert (at.low if edge == "low" else at.high) == (-math.inf if edge == "low" else math.inf)
    assert cost.high == math.inf
    assert cost.low == pytest.approx(parabola(-6 - optimum) - parabola(end - optimum), rel=0.1)


def optimum(value, draws, edge=None):
    draws = np.asarray(draws, float)
    nothing, is_bound = Drawn(0.0, np.empty(0)), np.where(np.isinf(draws), -1.0, 0.0)
    side = Drawn(-1.0 if edge else 0.0, is_bound)
    return CurveFit(exact(parabola, -6.0), (), Drawn(value, draws), side, nothing, nothing, 0.1, 3.0)


def test_the_interval_of_a_shift_from_or_to_a_bound_is_open():
    base, beyond = optimum(-7.0, [-7.1, -7.0, -6.9]), optimum(-10.0, [-np.inf, -10.0, -9.9], "low")
    there, back = beyond.shift_from(base), base.shift_from(beyond)
    assert (there.value, there.low, back.value, back.high) == (-3.0, -math.inf, 3.0, math.inf)
    assert (there.high, back.low) == (pytest.approx(-3.0), pytest.approx(3.0))
    assert base.shift_from(base) == Estimate(0.0, 0.0, 0.0)


def test_the_window_follows_an_optimum_far_from_the_zero_shot_value():
    found = fit_curve(exact(parabola, -9.0, grid=(-12, -11, -10, -9, -8, -7, -6, -5)), NO_NOISE)
    assert found.optimum.value == pytest.approx(-9.0, abs=0.05)
    assert found.cost.value == pytest.approx(parabola(3.0), rel=0.02)
    assert found.edge is None


def with_wall(curve, above):
    losses = tuple((math.inf,) * 3 if x > above else point for x, point in zip(GRID, curve.losses, strict=True))
    return replace(curve, losses=losses)


def test_an_optimum_beside_diverged_runs_is_a_bound():
    found = fit_curve(with_wall(exact(parabola, -5.5), above=-5.5), NO_NOISE)
    assert (found.edge, found.values[-1]) == ("high", -6)


def test_values_before_diverged_ones_are_fitted_as_ever():
    found = fit_curve(with_wall(exact(skewed, -6.3), above=-4.5), NO_NOISE)
    assert found.optimum.value == pytest.approx(-6.3, abs=0.03)


def test_one_diverged_run_removes_its_value():
    curve = exact(parabola, -6.3)
    losses = (*curve.losses[:4], (curve.losses[4][0], math.inf, curve.losses[4][2]), curve.losses[5])
    assert -5 not in fit_curve(replace(curve, losses=losses), NO_NOISE).values


def test_only_allowed_values_are_fitted():
    assert fit_curve(exact(parabola, -6.3), NO_NOISE, allowed={-8, -7, -6}).values == (-8, -7, -6)


def test_more_seeds_and_nearer_values_narrow_the_interval():
    def width(grid, n_seeds):
        cost = fit_curve(exact(skewed, -6.2, grid=grid, n_seeds=n_seeds), Noise(0.005, 20)).optimum_estimate()
        return cost.high - cost.low

    assert width(HALVES, 3) < 0.8 * width(GRID[1:-1], 3)
    assert width(HALVES, 12) < 0.8 * width(HALVES, 3)


def test_cells_that_are_not_there_are_passed_over():
    """In an adaptive study, the zero-shot value may have more seeds than other values."""
    curve = exact(parabola, -6.3)
    fewer = tuple((*losses[:2], math.nan) if x != -6 else losses for x, losses in zip(GRID, curve.losses, strict=True))
    assert fit_curve(replace(curve, losses=fewer), NO_NOISE).optimum.value == pytest.approx(-6.3, abs=0.03)


@pytest.mark.parametrize("known", [0, 2])
def test_fewer_than_three_values_have_no_fit(known):
    curve = exact(parabola, -6.3)
    losses = tuple(
        point if x < -6 + known else (math.inf,) * 3
        for x, point in zip((-6, -5, -4, -3, -2, -1), curve.losses, strict=True)
    )
    assert fit_curve(replace(curve, losses=losses), NO_NOISE) is None


def test_one_seed_gives_an_optimum_and_no_interval():
    curve = exact(parabola, -6.3, n_seeds=1)
    noise = pooled_noise([curve])
    assert not noise.is_known
    found = fit_curve(curve, noise)
    assert found.optimum.value == pytest.approx(-6.3, abs=0.03)
    ends = (found.optimum_estimate(), found.cost_estimate())
    assert all(math.isnan(each.low) and math.isnan(each.high) for each in ends)


def test_draws_are_seeded():
    curve = make_curve(parabola, -6.3, 0.01, np.random.default_rng(0))
    first, again, other = (fit_curve(curve, pooled_noise([curve]), seed=seed).cost.draws for seed in (3, 3, 4))
    assert first.shape == (DRAWS,)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_stopped_value_is_a_wall_behind_which_the_minimum_cannot_lie():
    """Five values leave open whether the loss falls further above them; a run that was stopped there decides it."""
    rng = np.random.default_rng(1)
    (seen,) = make_axis(parabola, -6.2, 0.0, 0.02, rng, scales=(1.0,), grid=(-7.0, -6.5, -6.0, -5.5))
    noise = Noise(0.02, 20)
    open_ended = fit_curve(seen, noise)
    assert open_ended.cost_estimate().high == math.inf
    lost = (math.inf,) * seen.n_seeds
    walled = replace(
        seen,
        log2_values=(-8.0, *seen.log2_values, -4.5),
        losses=(lost, *seen.losses, lost),
        n_missing=(0,) * 6,
        n_stopped=(len(seen.seeds), 0, 0, 0, 0, len(seen.seeds)),
    )
    fit = fit_curve(walled, noise)
    assert fit.values == open_ended.values
    assert fit.cost_estimate().high < 0.2
    assert -8 < fit.optimum_estimate().low < fit.optimum_estimate().high < -4.5
    diverged = replace(walled, n_stopped=(0,) * 6)
    assert fit_curve(diverged, noise).cost_estimate().high == math.inf, "the loss may fall up to where runs diverge"
