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
    assert "2 curves: 2 TRANSFERS; " in number
    assert "octaves: lr +0." in number
    assert "lr along larger, 0.0016 [" in number


def test_a_longer_horizon_that_moves_all_its_optima_alike_does_not_hold():
    answer, number, why = read(decide(valley, lambda run: valley(run, lr=-8.0, init=-4.1)))
    assert answer == NOT
    assert "octaves: lr -1.00, init std -0." in number
    assert "2 curves: 1 TRANSFERS, 1 FAILS; " in number
    assert "lr along larger, 0.0400 [" in number
    assert why.startswith("larger, lr: zero-shot costs 0.0400 nats at 4 times the base")


def test_a_longer_horizon_is_inconclusive_where_the_base_is_not_tuned():
    found = decide(lambda run: valley(run, init=-5), lambda run: valley(run, lr=-6.8, init=-5))
    assert found.answer == UNSURE


def test_a_longer_horizon_without_an_optimum_of_the_larger_model_has_no_shift():
    answer, number, why = read(decide(valley, lambda run: math.inf if run.model.n_embd == 64 else valley(run)))
    assert answer == NOT
    assert "octaves: unknown; 2 curves: 2 FAILS" in number
    assert "zero-shot runs diverge at 4 times the base" in why


@pytest.mark.heavy
def test_the_figure_has_the_base_by_its_width_and_the_larger_model_by_its_scale(drawings):
    drawings()
    (drawing,) = decide(valley, valley).drawings
    rows = list(csv.DictReader(io.StringIO(drawing.csv)))
    assert {(row["axis"], row["size"], row["scale"]) for row in rows} == {
        ("larger", "32", "1"),
        ("larger", "4", "4"),
    }
