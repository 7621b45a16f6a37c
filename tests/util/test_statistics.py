import math

import pytest

from expertp.util.statistics import UNKNOWN, Estimate, student_t

# Two-sided 95% points of Student's t by degrees of freedom, from a printed table.
TABLE = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228,
    11: 2.201, 12: 2.179, 13: 2.160, 14: 2.145, 15: 2.131, 16: 2.120, 17: 2.110, 18: 2.101, 19: 2.093, 20: 2.086,
    21: 2.080, 22: 2.074, 23: 2.069, 24: 2.064, 25: 2.060, 26: 2.056, 27: 2.052, 28: 2.048, 29: 2.045, 30: 2.042,
    31: 2.040, 32: 2.037, 33: 2.035, 34: 2.032, 35: 2.030, 36: 2.028, 37: 2.026, 38: 2.024, 39: 2.023, 40: 2.021,
    41: 2.020, 42: 2.018, 43: 2.017, 44: 2.015, 45: 2.014, 46: 2.013, 47: 2.012, 48: 2.011, 49: 2.010,
}  # fmt: skip


def test_students_t_is_that_of_the_tables():
    assert {n - 1: round(student_t(n), 3) for n in range(2, 51)} == TABLE


def test_students_t_of_two_values_has_a_closed_form():
    assert student_t(2) == pytest.approx(math.tan(math.pi / 2 * 0.95), rel=1e-12)


def test_fewer_than_two_values_have_no_interval():
    assert math.isnan(student_t(1))
    assert math.isnan(student_t(0))


def test_the_ends_of_a_difference_add_in_quadrature_on_their_side():
    found = Estimate(3.0, 2.7, 3.4) - Estimate(1.0, 0.7, 1.4)
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0 - math.hypot(0.3, 0.4), 2.5))


def test_a_difference_to_something_open_or_unknown_is_open_or_unknown():
    bound = Estimate(-9.0, -math.inf, -8.5) - Estimate(-7.0, -7.1, -6.9)
    assert (bound.value, bound.low) == (-2.0, -math.inf)
    assert math.isfinite(bound.high)
    assert not (UNKNOWN - Estimate(1.0, 0.9, 1.1)).is_known
    assert math.isnan((Estimate(1.0, math.nan, math.nan) - Estimate(0.5, 0.4, 0.6)).low)


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.1234, 0.1, 0.2), "+0.12 [+0.10, +0.20]"),
        (Estimate(-1.0, -math.inf, -0.5), "-1.00 [-inf, -0.50]"),
        (Estimate(1.0, math.nan, math.nan), "+1.00 [?, ?]"),
        (UNKNOWN, "-"),
    ],
)
def test_an_estimate_is_written_with_its_interval(estimate, text):
    assert f"{estimate:+.2f}" == text
