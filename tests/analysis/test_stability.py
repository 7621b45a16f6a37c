import math

import pytest
from analysis.surfaces import size_of

from expertp.analysis.curves import Curve
from expertp.analysis.stability import UnstableSeeds, common_octaves, unstable_runs, unstable_seeds
from expertp.spec import BaseHPs
from expertp.study.cells import Arm


def curve_of(*losses):
    values = tuple(float(place - 8) for place in range(len(losses)))
    arm, seeds = Arm("expertp", BaseHPs(lr=2**-7)), tuple(range(len(losses[0])))
    return Curve("width", size_of(1.0), arm, "log2_lr", values, losses, seeds, (0,) * len(losses))


def test_a_run_is_unstable_if_it_diverges_or_ends_far_above_the_best_median():
    curve = curve_of((3.0, 3.2, 3.1), (3.59, 3.61, math.nan), (math.inf, 3.0, 2.9))
    assert unstable_runs(curve) == {
        -8.0: (False, False, False),
        -7.0: (False, True, None),
        -6.0: (True, False, False),
    }


def test_a_seed_is_unstable_if_one_of_its_runs_above_the_best_value_is():
    curve = curve_of((3.0, 3.2, 3.1), (3.59, 3.61, math.nan), (math.inf, 3.0, 2.9))
    assert unstable_seeds(curve, 1) == UnstableSeeds(1, 2)
    assert unstable_seeds(curve, 2) == UnstableSeeds(2, 3)
    assert str(unstable_seeds(curve, 2)) == "2 of 3"


def test_curves_are_compared_as_far_above_their_best_values_as_both_grids_go():
    early, late = curve_of((3.0,), (3.1,), (3.2,), (3.3,)), curve_of((3.3,), (3.0,), (3.1,), (math.inf,))
    assert common_octaves([early, late]) == 2
    assert common_octaves([early]) == 3


def test_every_value_counts_where_runs_diverge_at_all():
    nowhere = curve_of((math.inf, 3.0), (math.inf, 3.0))
    assert unstable_seeds(nowhere, 0) == UnstableSeeds(1, 2)


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
        ((0, 8), (0, 8), False),
        ((0, 7), (0, 8), None),  # too few to be stable
        ((0, 0), (0, 0), None),
    ],
)
def test_more_unstable_seeds_need_an_exact_test_and_stability_enough_seeds(one, other, answer):
    assert UnstableSeeds(*one).are_more_than(UnstableSeeds(*other)) is answer
