import math

import numpy as np
import pytest

from expertp.analysis.seed_curves import seed_curves, training_losses
from expertp.training.records import StepMetrics


def records(**losses):
    """Return records by seed: records(_0={1: 7.0, 2: 6.0}) has two steps of seed 0."""
    return {
        int(seed[1:]): [StepMetrics(step=step, loss=loss) for step, loss in of_seed.items()]
        for seed, of_seed in losses.items()
    }


def test_a_curve_has_a_row_per_seed_and_a_column_per_step_of_any_seed():
    found = training_losses(records(_3={1: 7.0, 2: 6.0}, _0={2: 5.0, 4: 4.0}))
    assert (found.seeds, found.steps) == ((3, 0), (1, 2, 4))
    assert np.array_equal(found.values_ST, [[7, 6, math.nan], [math.nan, 5, 4]], equal_nan=True)


def test_a_quantity_that_a_record_does_not_have_is_nan():
    validated = {0: [StepMetrics(step=1, loss=7.0), StepMetrics(step=2, loss=6.0, val_loss=5.5)]}
    found = seed_curves(validated, lambda record: record.val_loss)
    assert np.array_equal(found.values_ST, [[math.nan, 5.5]], equal_nan=True)


def test_values_are_chosen_by_step_and_seed():
    found = training_losses(records(_0={1: 7.0, 2: 6.0}, _1={1: 5.0, 2: 4.0}, _2={1: 3.0, 2: 2.0}))
    assert found.at((2, 1)).tolist() == [[6, 7], [4, 5], [2, 3]]
    assert np.array_equal(found.at((2, 9), seeds=(2, 0)), [[2, math.nan], [6, math.nan]], equal_nan=True)
    assert found.at((), seeds=(1,)).shape == (1, 0)
    with pytest.raises(ValueError, match="not in tuple"):
        found.at((1,), seeds=(7,))


def test_seeds_are_shared_where_both_have_them():
    one, other = training_losses(records(_2={1: 7.0}, _0={1: 6.0})), training_losses(records(_1={1: 7.0}, _2={1: 6.0}))
    assert one.shared_seeds(other) == (2,)
    assert one.shared_seeds(training_losses({})) == ()


def test_no_record_is_an_empty_curve():
    found = training_losses({})
    assert (found.seeds, found.steps, found.values_ST.shape) == ((), (), (0, 0))
