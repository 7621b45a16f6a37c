import math

import pytest

from expertp.analysis.balance import load_balance
from expertp.training.records import StepMetrics


def record(step, deviations, dead):
    return StepMetrics(step=step, loss=1.0, max_load_deviation=tuple(deviations), dead_experts=tuple(dead))


def test_load_is_the_worst_layer_in_the_mean_over_seeds():
    seen = load_balance(
        {
            0: [record(1, [0.5, 0.1], [1, 2]), record(2, [0.2, 0.1], [0, 0])],
            1: [record(1, [0.1, 0.3], [0, 0]), record(2, [0.0, 0.4], [1, 0])],
        }
    )
    assert (seen.steps, seen.n_seeds) == ((1, 2), 2)
    assert seen.max_deviation == pytest.approx((0.4, 0.3))
    assert seen.dead_experts == pytest.approx((1.5, 0.5))


def test_the_curve_ends_with_the_first_run_that_does():
    whole = [record(step, [0.1], [0]) for step in (1, 2, 3)]
    assert load_balance({0: whole, 1: whole[:2]}).steps == (1, 2)


def test_the_late_load_is_the_mean_of_the_last_quarter():
    seen = load_balance({0: [record(step, [0.1 * step], [0]) for step in range(1, 9)]})
    assert seen.late(8) == pytest.approx(0.75)
    assert math.isnan(seen.late(9))


def test_a_dense_model_has_no_load():
    assert load_balance({0: [record(1, [], [])]}) is None
    assert load_balance({}) is None
