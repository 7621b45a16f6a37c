import math

import pytest
from analysis.surfaces import size_of

from expertp.analysis.curves import Curve
from expertp.analysis.stability import UnstableRuns, total, unstable_by_value
from expertp.spec import BaseHPs
from expertp.study.cells import Arm


def test_a_run_is_unstable_if_it_diverges_or_ends_far_above_the_best_median():
    losses = ((3.0, 3.2, 3.1), (3.59, 3.61, math.nan), (math.inf, 3.0, 2.9))
    arm = Arm("expertp", BaseHPs(lr=2**-7))
    curve = Curve("width", size_of(1.0), arm, "log2_lr", (-8.0, -7.0, -6.0), losses, (0, 1, 2), (0, 1, 0))
    found = unstable_by_value(curve)
    assert found == {-8.0: UnstableRuns(0, 3), -7.0: UnstableRuns(1, 2), -6.0: UnstableRuns(1, 3)}
    assert total(found.values()) == UnstableRuns(2, 8)
    assert str(total(found.values())) == "2 of 8"


@pytest.mark.parametrize(
    ("one", "other", "answer"),
    [
        ((2, 4), (0, 4), None),  # p = 0.21: not evidence
        ((4, 4), (0, 4), True),  # p = 1/70
        ((5, 8), (0, 8), True),
        ((3, 8), (0, 8), None),  # p = 0.1
        ((6, 20), (6, 20), None),
        ((0, 20), (3, 20), False),
        ((1, 20), (0, 20), False),
        ((0, 8), (0, 8), None),  # too few to be stable
        ((0, 0), (0, 0), None),
    ],
)
def test_more_unstable_runs_need_an_exact_test_and_stability_enough_runs(one, other, answer):
    assert UnstableRuns(*one).are_more_than(UnstableRuns(*other)) is answer
