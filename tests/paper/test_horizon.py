import csv
import io
import math

import pytest
from made_tables import BATCH, HOLDS, NOT, STEPS, both_grids, table, valley

from expertp.paper import horizon


def decide(short, long, long_lr=-7.0):
    joint = {"larger": {"models": [{"n_embd": 64, "n_layer": 4}]}}  # four times the base
    train = {"data": "none", "steps": 3 * STEPS, "batch_tokens": BATCH, "eval_every": 2}
    specs = {
        "transfer-quarter": both_grids("transfer-quarter"),
        "horizon": both_grids(
            "horizon", axes={}, joint=joint, train=train, hps={"lr": 2.0**long_lr, "init_std": 2.0**-4}
        ),
    }
    return horizon.decide({name: table(spec, short if name != "horizon" else long) for name, spec in specs.items()})


def test_a_horizon_that_moves_no_optimum_holds_by_both_criteria():
    found = decide(valley, lambda run: valley(run, lr=-6.9))
    assert (found.answer, found.paper_answer) == (HOLDS, HOLDS)
    assert found.number.startswith("base's optimum at 24 steps minus that at 8, in octaves: lr +0.10 [")
    assert "init std +0.00 [" in found.number
    assert "2 curves: 2 TRANSFERS; " in found.number
    assert "lr along larger, 0.0004 [" in found.number


def test_a_shift_of_horizon_and_schedule_is_not_one_of_size():
    # Both sizes move by an octave: the short horizon's learning rate costs, and nothing is decided about size.
    found = decide(valley, lambda run: valley(run, lr=-8.0))
    assert "octaves: lr -1.00 [" in found.number
    assert found.parts == [None, True, False, True]
    assert (found.answer, found.paper_answer) == (NOT, NOT)
    assert "tune the base first" in found.why
    assert "cost of the short horizon's values at the larger model (nats): lr 0.0400 [" in found.number


def test_the_values_of_the_short_horizon_are_judged_at_the_larger_model_on_the_long_one():
    # The long study was tuned at its own optimum, an octave below the short one.
    found = decide(valley, lambda run: valley(run, lr=-8.0), long_lr=-8.0)
    assert found.parts == [True, True, False, True]
    near = decide(valley, lambda run: valley(run, lr=-7.25), long_lr=-7.0)
    assert near.parts == [True, True, True, True]


def test_an_optimum_that_moves_with_size_on_the_long_horizon_does_not_hold():
    found = decide(valley, lambda run: valley(run, lr_drift=-0.5))
    assert (found.answer, found.paper_answer) == (NOT, NOT)
    assert "octaves: lr +0.00 [" in found.number
    assert found.why.startswith("larger, lr: zero-shot costs 0.0400 nats at 4 times the base")


def test_the_papers_criterion_compares_the_larger_model_with_the_base_on_the_short_horizon():
    # The short base at -8 and the larger model at -7 differ, though the two sizes on the long horizon agree.
    found = decide(lambda run: valley(run, lr=-8.0), valley)
    assert (found.answer, found.paper_answer) == (HOLDS, NOT)


def test_a_larger_model_that_diverges_has_no_optimum():
    found = decide(valley, lambda run: math.inf if run.model.n_embd == 64 else valley(run))
    assert (found.answer, found.paper_answer) == (NOT, NOT)
    assert "zero-shot runs diverge at 4 times the base" in found.why
    unknown = decide(lambda _: math.inf, valley)
    assert "octaves: lr -, init std -;" in unknown.number


@pytest.mark.heavy
def test_the_figure_has_the_base_on_both_horizons_and_the_larger_model(drawings):
    drawings()
    (drawing,) = decide(valley, valley).drawings
    rows = list(csv.DictReader(io.StringIO(drawing.csv)))
    assert {(row["axis"], row["size"], row["scale"]) for row in rows} == {
        ("larger", "32", "1"),
        ("larger", "1", "1"),
        ("larger", "4", "4"),
    }
