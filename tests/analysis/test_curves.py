import math

import pytest
from analysis.surfaces import EXAMPLE, results_of, small_study

from expertp.analysis.curves import StudyTable
from expertp.config import load_study
from expertp.loop import resolved
from expertp.study import expand


def test_a_curve_holds_the_losses_of_its_grid_by_value_and_seed():
    study = small_study()
    results = results_of(study)
    curve = StudyTable(study, results).curve("width", 4.0, "expertp", "log2_lr")
    assert (curve.size, curve.centre, curve.seeds) == (256, -6, (0, 1, 2))
    by_run = {
        (result.run.hps.lr, result.run.train.seed): result.val_loss
        for result in results
        if result.run.model.n_embd == 256
    }
    for value, cell in zip(curve.log2_values, curve.losses, strict=True):
        assert cell == tuple(by_run[2.0**value, seed] for seed in curve.seeds)
    assert sum(curve.n_missing) == sum(curve.n_diverged) == 0


def test_results_are_found_though_their_runs_name_the_compute_type():
    study = small_study("train.dtype=auto")
    runs = [resolved(run, "cpu") for run in expand(study)]
    assert {run.train.dtype for run in runs} != {"auto"}
    table = StudyTable(study, results_of(study, runs=runs))
    assert all(table.result(run) is not None for run in expand(study))


def test_a_diverged_run_makes_its_cell_infinite_and_a_missing_one_does_not_count():
    study = small_study()
    states = {(2.0**-4, 1): "diverged", (2.0**-5, 0): "failed", (2.0**-9, 2): "unfinished"}
    results = results_of(study, status=lambda run: states.get((run.hps.lr, run.train.seed), "finished"))
    curve = StudyTable(study, results).curve("width", 2.0, "expertp", "log2_lr")
    assert curve.n_diverged == (0, 0, 0, 0, 0, 1)
    assert curve.n_missing == (1, 0, 0, 0, 1, 0)
    assert curve.medians[-1] == math.inf
    assert curve.medians[-2] == pytest.approx(sum(curve.losses[-2][1:]) / 2)


def test_what_the_study_does_not_sweep_has_no_curve():
    study = load_study(EXAMPLE, [])
    table = StudyTable(study, results_of(study))
    assert list(table.curves("width", "expertp", "log2_lr")) == [1, 2, 4]
    assert list(table.curves("width", "sp", "log2_lr")) == [1, 4]
    assert table.curves("depth", "sp", "log2_lr") == {}
    assert table.curves("depth", "expertp", "log2_init_std") == {}
    assert table.curve("width", 8.0, "expertp", "log2_lr") is None


def test_zero_shot_losses_are_those_of_the_centre():
    study = small_study()
    table = StudyTable(study, results_of(study))
    curve = table.curve("width", 2.0, "expertp", "log2_lr")
    assert table.zero_shot("width", 2.0, "expertp") == curve.losses[curve.log2_values.index(-6)]


def test_a_run_without_a_result_is_nan():
    study = small_study()
    assert all(map(math.isnan, StudyTable(study, []).zero_shot("width", 2.0, "expertp")))
