import math

import numpy as np
import pytest

from expertp.theory.trajectory import Trajectory, distance, losses

Y = np.array([1.0, -2.0])


def run_of(*each):
    """Return a run whose replicates have these outputs [P, T]."""
    f_each = np.array(each, dtype=float)
    none = np.zeros((len(each), 1, 1, 2, f_each.shape[-1]))
    return Trajectory(f_each.mean(0), f_each, Y, none, none[..., 0, :], none[..., 0, :])


def test_the_loss_is_half_the_mean_square_at_each_step():
    seen = run_of([[0, 1, 1], [0, -2, 0]]).loss
    assert seen == pytest.approx([(1 + 4) / 4, 0, 4 / 4])
    assert losses(np.zeros((7, 2, 3)), Y).shape == (7, 3)
    assert losses(np.zeros((7, 2, 3)), Y) == pytest.approx(np.full((7, 3), 1.25))


def test_the_loss_is_that_of_the_mean_output():
    run = run_of([[2.0], [-2.0]], [[0.0], [-2.0]])
    assert run.loss == pytest.approx([0])
    assert losses(run.f_each, Y).mean(0) == pytest.approx([0.25])


def test_the_monte_carlo_error_is_that_of_the_mean():
    run = run_of([[1.0, 2.0], [0.0, 0.0]], [[3.0, 2.0], [0.0, 6.0]])
    # Variances 2 and 18 over two replicates leave 1 and 9; the mean is (2, 2; 0, 3).
    assert run.mc_error == pytest.approx(math.sqrt(10 / 17))
    assert math.isnan(run_of([[1.0], [2.0]]).mc_error)


def test_four_times_the_replicates_halve_the_monte_carlo_error():
    rng = np.random.default_rng(0)
    few, many = (run_of(*(5 + rng.standard_normal((n, 2, 50)))).mc_error for n in (100, 400))
    assert few / many == pytest.approx(2, rel=0.1)
    assert few == pytest.approx(0.1 / 5, rel=0.1)


def test_a_loss_that_stays_or_rises_or_is_no_number_is_not_monotone():
    def falling(*of_first):
        return run_of([list(of_first), [0.0] * len(of_first)]).is_monotone

    assert falling(0.0, 0.5, 0.9)
    assert not falling(0.0, 0.5, 0.5)
    assert not falling(0.0, 0.9, 0.5)
    assert not falling(0.0, 0.5, math.nan)


def test_a_distance_is_relative_to_the_reference():
    reference = np.array([[3.0, 0.0], [0.0, 4.0]])
    assert distance(reference, reference) == 0
    assert distance(reference + np.array([[0, 1.0], [0, 0]]), reference) == pytest.approx(0.2)
    assert distance(2 * reference, reference) == pytest.approx(1)
    assert distance(reference, 2 * reference) == pytest.approx(0.5)
