import math

import pytest
from made_tables import study, table

from expertp.analysis.horizon import horizon_drift
from expertp.training.records import StepMetrics

STEPS = 200
GRID = {"log2_lr": [-8, -7.5, -7, -6.5, -6]}


def made(moves, **train):
    """Return a study whose base has its optimum at -7, and at -7 - moves at half of the steps."""
    tree = {"data": "none", "steps": STEPS, "batch_tokens": 128, "eval_every": 2, **train}
    spec = study(axes={"width": [32, 64]}, grids=GRID, train=tree)

    def records(run):
        found = []
        for step in range(1, STEPS + 1):
            at = -7 + moves * math.log2(step / STEPS)
            away = math.log2(run.hps.lr) - at
            found.append(StepMetrics(step=step, loss=4 - step / STEPS + 0.05 * away**2 + 0.001 * run.train.seed))
        return found

    return table(spec, records=records)


@pytest.mark.parametrize("moves", [-0.6, 0.0, 0.4])
def test_the_shift_per_doubling_of_steps_is_that_of_the_training_curves(moves):
    assert horizon_drift(made(moves)).value == pytest.approx(moves, abs=0.05)


def test_the_shift_of_an_optimum_at_the_end_of_the_grid_is_a_bound():
    """At half of the steps the optimum lies at -5, beyond the grid, and at its end it is taken for -6."""
    seen = horizon_drift(made(-2.0))
    assert seen.low == -math.inf
    assert seen.high < 0


@pytest.mark.parametrize("train", [{"schedule": "cosine"}, {"warmup_steps": 80}])
def test_it_is_unknown_where_half_a_run_is_not_a_shorter_run(train):
    assert not horizon_drift(made(-0.6, **train)).is_known


def test_it_is_unknown_without_training_curves():
    assert not horizon_drift(table(study(axes={"width": [32, 64]}, grids=GRID))).is_known
