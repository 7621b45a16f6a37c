"""A quick version of benchmarks/verdict_power.py and benchmarks/adaptive_cost.py, on recorded curves."""

import pytest

from benchmarks.adaptive_cost import BUDGET, recorded_rows
from benchmarks.verdict_power import characteristics, recorded_surfaces

# One curve of each study and hyperparameter.
AXES = ("width", "depth")


@pytest.mark.heavy
@pytest.mark.parametrize("multiple", [0.0, 2.0])
def test_the_verdict_is_right_on_recorded_curves(multiple):
    chosen = [surface for surface in recorded_surfaces() if surface.axis in AXES]
    rows = [characteristics(surface, multiple, surfaces=12) for surface in chosen]
    transfers, covered = (sum(float(row[name]) for row in rows) / len(rows) for name in ("TRANSFERS", "covered"))
    assert transfers >= 0.9 if multiple == 0 else transfers <= 0.05
    assert covered >= 0.9


@pytest.mark.heavy
def test_an_adaptive_sweep_finds_the_verdicts_of_the_full_grid_with_a_third_of_its_flops():
    rows = recorded_rows()
    assert len(rows) == 16
    assert all(float(row["share of FLOPs"]) <= BUDGET for row in rows)
    decided = [row for row in rows if row["full grid"] != "UNDECIDED"]
    assert len(decided) >= 4
    assert all(row["adaptive"] == row["full grid"] for row in decided)
