"""A quick version of benchmarks/verdict_power.py and benchmarks/adaptive_cost.py, on recorded curves."""

import pytest

from benchmarks.adaptive_cost import BUDGET, recorded_rows
from benchmarks.recorded import present_studies
from benchmarks.verdict_power import (
    FEWEST_SEEDS,
    adaptive_characteristics,
    characteristics,
    present_surfaces,
    recorded_surfaces,
    simulate,
)
from expertp.search.design import MOST_SEEDS

# Axes of the earlier profile; that of experts has the worst curve, which has its own expectation.
AXES = ("width", "depth")
WORST_EARLIER = ("transfer-quarter", "experts", "log2_init_std")
# The curve of the present profile that three seeds leave open most often.
WORST = ("transfer-quarter", "alpha", "log2_lr")


def place_of(surface):
    return surface.study, surface.axis, surface.hp


def present(place):
    """Return a surface of the present profile, and those of the other curves of its study."""
    found = [surface for surface in present_surfaces() if surface.study == place[0]]
    (surface,) = [each for each in found if place_of(each) == place]
    return surface, [each for each in found if each is not surface]


def rates(row):
    return {name: float(row[name]) for name in ("TRANSFERS", "FAILS", "UNDECIDED", "covered")}


@pytest.mark.heavy
@pytest.mark.parametrize("multiple", [0.0, 2.0])
def test_the_verdict_is_right_on_recorded_curves(multiple):
    chosen = [surface for surface in recorded_surfaces() if surface.axis in AXES]
    rows = [characteristics(surface, multiple, surfaces=12) for surface in chosen]
    transfers, covered = (sum(float(row[name]) for row in rows) / len(rows) for name in ("TRANSFERS", "covered"))
    assert transfers >= 0.9 if multiple == 0 else transfers <= 0.05
    assert covered >= 0.9


@pytest.mark.heavy
def test_the_worst_curve_of_the_earlier_profile_is_often_left_open_and_never_wrong():
    """It is flat to 0.0005 nats over three quarters of an octave, and steep beyond."""
    (worst,) = [surface for surface in recorded_surfaces() if place_of(surface) == WORST_EARLIER]
    zero, twice = (rates(characteristics(worst, multiple, surfaces=40)) for multiple in (0.0, 2.0))
    assert 0.15 <= zero["TRANSFERS"] <= 0.6
    assert zero["FAILS"] == 0
    assert twice["TRANSFERS"] <= 0.05


@pytest.mark.heavy
def test_the_worst_curve_of_the_profile_is_left_open_by_three_seeds_and_decided_by_an_adaptive_sweep():
    worst, others = present(WORST)
    fixed = rates(characteristics(worst, 0.0, 60, others=others))
    assert 0.25 <= fixed["TRANSFERS"] <= 0.75
    assert fixed["FAILS"] == 0
    row = adaptive_characteristics(worst, others, 0.0, 40)
    assert rates(row)["TRANSFERS"] >= 0.9
    assert rates(row)["covered"] >= 0.9
    assert 2 < float(row["seeds"]) < 12
    assert row["most_seeds"] <= MOST_SEEDS


@pytest.mark.heavy
def test_an_adaptive_sweep_does_not_call_twice_the_tolerance_a_transfer_on_the_worst_curve_of_the_profile():
    worst, others = present(WORST)
    found = rates(adaptive_characteristics(worst, others, 2.0, 40))
    assert found["TRANSFERS"] <= 0.05
    assert found["covered"] >= 0.9


def test_surfaces_of_the_profile_are_those_of_its_tables():
    found = {place_of(surface): surface for surface in present_surfaces()}
    assert {place[0] for place in found} == {*present_studies()}
    assert WORST in found
    for surface in found.values():
        assert float(surface.loss(0.0)) == pytest.approx(0, abs=1e-6), "the loss is that above the minimum"
        assert surface.loss(-1.0) > 0 < surface.loss(1.0)
        assert surface.loss(3.0) >= surface.loss(2.0), "beyond the values it does not fall"
        assert len(surface.residuals) >= 2 * FEWEST_SEEDS
        assert 0.003 < surface.residuals.std() < 0.05


def test_a_run_keeps_its_noise_when_an_adaptive_sweep_adds_seeds_and_values():
    surface, _ = present(WORST)
    few, many = (simulate(surface, 0.0, 7, octaves, MOST_SEEDS) for octaves in ((-1, 0, 1), (-1, -0.5, 0, 0.5, 1)))
    for before, after in zip(few, many, strict=True):
        kept = dict(zip(after.log2_values, after.losses, strict=True))
        assert [kept[value] for value in before.log2_values] == list(before.losses)


@pytest.mark.heavy
def test_an_adaptive_sweep_finds_the_verdicts_of_the_full_grid_with_a_third_of_its_flops():
    rows = recorded_rows()
    assert len(rows) == 16
    assert all(float(row["share of FLOPs"]) <= BUDGET for row in rows)
    decided = [row for row in rows if row["full grid"] != "UNDECIDED"]
    assert len(decided) >= 4
    assert all(row["adaptive"] == row["full grid"] for row in decided)
