import math

import pytest

from expertp.analysis.paired import PairedDifference, paired


def test_a_difference_is_judged_by_students_t_of_its_seeds():
    few, many = paired([3.0, 3.1], [3.02, 3.13]), paired([3.0, 3.1] * 6, [3.02, 3.13] * 6)
    assert (few.mean, many.mean) == (pytest.approx(-0.025), pytest.approx(-0.025))
    assert few.half_width == pytest.approx(12.7062 * 0.005, rel=1e-5)
    assert many.half_width == pytest.approx(2.2010 * many.error, rel=1e-4)
    assert (few.is_lower, many.is_lower, many.is_higher) == (False, True, False)
    assert paired([3.02, 3.13] * 6, [3.0, 3.1] * 6).is_higher


@pytest.mark.parametrize(("n", "point"), [(2, 12.706), (5, 2.776), (10, 2.262), (99, 1.984)])
def test_more_seeds_need_a_smaller_multiple_of_the_error(n, point):
    assert PairedDifference(0.0, 1.0, n).half_width == pytest.approx(point, abs=5e-4)


def test_a_bound_is_met_or_missed_only_by_the_whole_interval():
    difference = PairedDifference(0.01, 0.001, 3)
    assert [difference.is_at_most(bound) for bound in (0.02, 0.012, 0.001)] == [True, None, False]


def test_what_diverged_or_is_missing_is_not_averaged_away():
    assert str(paired([3.0, math.inf, 3.0], [3.1, 3.1, 3.1])) == "unknown, a run has diverged"
    assert paired([3.0, math.nan, 3.0], [3.1, 3.1, 3.2]).n == 2
    alone = paired([3.0], [3.1])
    assert str(alone) == "-0.1000 (one seed)"
    assert (alone.is_lower, alone.is_higher) == (False, False)
