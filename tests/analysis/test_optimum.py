import math
from dataclasses import replace

import numpy as np
import pytest
from analysis.surfaces import GRID, RISE, exponential, make_curve, parabola, skewed

from expertp.analysis.optimum import Noise, estimate_optimum, pooled_noise

NO_NOISE = Noise(sd=1e-6, dof=20, seed_sd=1e-6)


def exact(shape, optimum, **changes):
    return make_curve(shape, optimum, 0.0, np.random.default_rng(0), **changes)


@pytest.mark.parametrize(("shape", "within"), [(parabola, 1e-6), (skewed, 1e-6), (exponential, 0.06)])
@pytest.mark.parametrize("optimum", [-7.4, -6.9, -6.25, -5.6])
def test_the_optimum_lies_where_the_surface_has_it(shape, within, optimum):
    found = estimate_optimum(exact(shape, optimum), NO_NOISE)
    assert found.at.value == pytest.approx(optimum, abs=within)
    assert found.edge is None
    assert found.at.low <= optimum <= found.at.high


def test_loss_and_curvature_are_those_of_the_fit():
    found = estimate_optimum(exact(parabola, -6.3, seed_shift=0.0), NO_NOISE)
    assert found.loss == pytest.approx(3.0, abs=1e-9)
    assert found.curvature == pytest.approx(2 * RISE)


@pytest.mark.heavy
@pytest.mark.parametrize(("shape", "noise"), [(parabola, 0.01), (skewed, 0.003)], ids=["symmetric", "skewed"])
def test_the_interval_covers_the_optimum_in_about_95_of_100_surfaces(shape, noise):
    rng, covered = np.random.default_rng(0), 0
    for surface in range(500):
        optimum = rng.uniform(-7.4, -5.6)
        # Noise is pooled over the three sizes of an axis, as in a study.
        axis = [make_curve(shape, optimum + shift, noise, rng) for shift in (0.0, 0.1, -0.1)]
        at = estimate_optimum(axis[0], pooled_noise(axis), seed=surface).at
        covered += at.low <= optimum <= at.high
    assert 0.90 * 500 <= covered <= 0.99 * 500, covered


@pytest.mark.heavy
def test_the_estimate_has_no_bias_on_a_skewed_surface():
    rng, errors = np.random.default_rng(1), []
    for _ in range(200):
        optimum = rng.uniform(-7.4, -5.6)
        curve = make_curve(skewed, optimum, 0.003, rng)
        errors.append(estimate_optimum(curve, pooled_noise([curve]), draws=50).at.value - optimum)
    assert abs(np.mean(errors)) < 0.01
    # A plain parabola through the best three points is off by 0.12 octaves.
    assert np.std(errors) < 0.04


def test_pooled_noise_is_that_of_a_point_and_not_of_the_seeds_shift():
    rng = np.random.default_rng(0)
    curves = [make_curve(parabola, -6.3, 0.005, rng, seed_shift=0.1) for _ in range(200)]
    noise = pooled_noise(curves)
    assert noise.sd == pytest.approx(0.005, rel=0.05)
    assert noise.seed_sd == pytest.approx(0.1, rel=0.1)
    assert noise.dof == 200 * 2 * 2


def test_one_unlucky_run_hardly_moves_the_optimum():
    curve = make_curve(parabola, -6.3, 0.001, np.random.default_rng(0))
    spoilt = tuple(
        tuple(loss + 0.1 * (x == -5 and seed == 1) for seed, loss in enumerate(point))
        for x, point in zip(GRID, curve.losses, strict=True)
    )
    assert estimate_optimum(replace(curve, losses=spoilt), NO_NOISE).at.value == pytest.approx(-6.3, abs=0.05)


@pytest.mark.parametrize(("optimum", "edge", "end"), [(-9.4, "low", -9.0), (-11.0, "low", -9.0), (-3.0, "high", -4.0)])
def test_an_optimum_on_the_edge_is_a_bound(optimum, edge, end):
    found = estimate_optimum(exact(parabola, optimum), NO_NOISE)
    assert (found.edge, found.at.value) == (edge, end)
    bound, other = (found.at.low, found.at.high) if edge == "low" else (found.at.high, found.at.low)
    assert bound == (-math.inf if edge == "low" else math.inf)
    assert math.isfinite(other)


def with_wall(curve, above):
    losses = tuple((math.inf,) * 3 if x > above else point for x, point in zip(GRID, curve.losses, strict=True))
    return replace(curve, losses=losses)


def test_a_diverged_point_is_a_wall_and_not_an_edge():
    found = estimate_optimum(with_wall(exact(parabola, -6.3), above=-5.5), NO_NOISE)
    assert found.edge is None
    assert found.at.value == -6
    assert (found.at.low, found.at.high) == (-6.5, -5.0)


def test_points_before_a_wall_are_fitted_as_ever():
    found = estimate_optimum(with_wall(exact(skewed, -6.3), above=-4.5), NO_NOISE)
    assert found.at.value == pytest.approx(-6.3, abs=1e-6)


def test_one_diverged_run_is_enough_for_a_wall():
    curve = exact(parabola, -6.3)
    losses = (*curve.losses[:4], (curve.losses[4][0], math.inf, curve.losses[4][2]), curve.losses[5])
    at = estimate_optimum(replace(curve, losses=losses), NO_NOISE).at
    assert (at.low, at.high) == (-6.5, -5.0)


def test_a_blow_up_two_octaves_away_has_no_say():
    curve = exact(parabola, -6.6)
    losses = (*curve.losses[:4], *(tuple(loss + 3 for loss in point) for point in curve.losses[4:]))
    found = estimate_optimum(replace(curve, losses=losses), NO_NOISE)
    assert found.at.value == pytest.approx(-6.6, abs=0.35)
    assert found.at.low <= -6.6 <= found.at.high


def test_a_finer_grid_narrows_the_interval():
    widths = []
    for grid in (GRID, tuple(np.arange(-9, -3.9, 0.5))):
        curve = exact(skewed, -6.3, grid=grid)
        at = estimate_optimum(curve, Noise(0.005, 20, 0.01)).at
        widths.append(at.high - at.low)
    assert widths[1] < 0.8 * widths[0]


def test_values_without_results_are_passed_over():
    curve = exact(parabola, -6.3)
    losses = (*curve.losses[:4], (math.nan,) * 3, curve.losses[5])
    assert estimate_optimum(replace(curve, losses=losses), NO_NOISE).at.value == pytest.approx(-6.3, abs=1e-6)


def test_nothing_finite_has_no_optimum():
    curve = exact(parabola, -6.3)
    assert estimate_optimum(replace(curve, losses=((math.inf,) * 3,) * 6), NO_NOISE) is None


def test_one_seed_gives_an_optimum_and_no_interval():
    curve = exact(parabola, -6.3, n_seeds=1)
    noise = pooled_noise([curve])
    assert not noise.is_known
    found = estimate_optimum(curve, noise)
    assert found.at.value == pytest.approx(-6.3)
    assert all(map(math.isnan, (found.at.low, found.at.high)))


def test_draws_are_seeded():
    curve = make_curve(parabola, -6.3, 0.01, np.random.default_rng(0))
    first, again, other = (estimate_optimum(curve, pooled_noise([curve]), seed=seed).draws_low for seed in (3, 3, 4))
    assert first.shape == (1000,)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_seed_without_any_result_changes_nothing():
    curve = exact(parabola, -6.3)
    more = replace(curve, losses=tuple((*point, math.nan) for point in curve.losses), seeds=(*curve.seeds, 9))
    found, expected = estimate_optimum(more, NO_NOISE), estimate_optimum(curve, NO_NOISE)
    assert (found.at.value, found.edge) == (expected.at.value, None)


def test_the_noise_that_excess_is_held_against_is_that_of_the_best_points():
    curve = exact(parabola, -7.0, seed_shift=0.0)
    best = int(np.argmin([point[0] for point in curve.losses]))
    wild = [
        tuple(np.add(point, [-0.3, 0.0, 0.3])) if place == best + 1 else point
        for place, point in enumerate(curve.losses)
    ]
    noise = pooled_noise([replace(curve, losses=tuple(wild))])
    assert noise.sd > 0.1
    assert noise.seed_sd < 1e-6
