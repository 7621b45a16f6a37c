import csv
import io
import math

import pytest
from made_tables import HOLDS, NOT, UNSURE, both_grids, read, table, valley

from expertp.paper import horizon


def decide(short, long):
    joint = {"larger": {"models": [{"n_embd": 64, "n_layer": 4}]}}  # four times the base
    specs = {"transfer-quarter": both_grids("transfer-quarter"), "horizon": both_grids("horizon", axes={}, joint=joint)}
    return horizon.decide({name: table(spec, short if name != "horizon" else long) for name, spec in specs.items()})


def test_a_longer_horizon_holds_when_the_short_ones_optima_are_still_about_right():
    answer, number, _ = read(decide(valley, lambda run: valley(run, lr=-6.8, init=-4.1)))
    assert answer == HOLDS
    assert "optimum of `larger`" in number
    assert "octaves: lr +0.20, init std -0.10; 2 curves: 2 PASS; " in number
    assert "lr along larger, +0.10 [+0.10, +0.10] octaves per doubling" in number


def test_a_longer_horizon_that_moves_all_its_optima_alike_does_not_hold():
    answer, number, why = read(decide(valley, lambda run: valley(run, lr=-8.0, init=-4.1)))
    assert answer == NOT
    assert "octaves: lr -1.00, init std -0.10; 2 curves: 1 PASS, 1 FAIL; " in number
    assert "lr along larger, -0.50" in number
    assert why.startswith("larger, lr: the optimum moves by -0.50 octaves per doubling")


def test_a_longer_horizon_is_inconclusive_on_the_edge_of_the_grid():
    found = decide(lambda run: valley(run, init=-8), lambda run: valley(run, lr=-6.8, init=-8))
    assert found.answer == UNSURE


def test_a_longer_horizon_without_an_optimum_of_the_larger_model_has_no_shift():
    answer, number, why = read(decide(valley, lambda run: math.inf if run.model.n_embd == 64 else valley(run)))
    assert answer == NOT
    assert "octaves: unknown; 2 curves: 2 FAIL" in number
    assert "runs at 4 times the base diverge at every value" in why


@pytest.mark.heavy
def test_the_figure_has_the_base_by_its_width_and_the_larger_model_by_its_scale(drawings):
    drawings()
    (drawing,) = decide(valley, valley).drawings
    rows = list(csv.DictReader(io.StringIO(drawing.csv)))
    assert {(row["axis"], row["size"], row["scale"]) for row in rows} == {
        ("larger", "32", "1"),
        ("larger", "4", "4"),
    }
