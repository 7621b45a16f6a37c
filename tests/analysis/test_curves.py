import math

import pytest
from analysis.surfaces import EXAMPLE, results_of, size_of, small_study, table_of
from runs import write_tokens
from synthetic import study_spec, write_study

from expertp.analysis.curves import Curve, curve, curves
from expertp.spec import BaseHPs
from expertp.study.cells import Arm
from expertp.study.load import load_study
from expertp.study.table import StudyTable
from expertp.training.resolution import resolved


def curve_at(table, scale):
    """Return the learning-rate curve of the study's own arm at a width."""
    size = next(size for size in table.sizes("width") if size.scale == scale)
    return curve(table, "width", size, table.own, "log2_lr")


def test_a_curve_holds_the_losses_of_its_grid_by_value_and_seed():
    study = small_study()
    results = results_of(study)
    found = curve_at(StudyTable.join(study, results), 4)
    assert (found.size.model.n_embd, found.arm.name, found.centre, found.seeds) == (256, "expertp", -6, (0, 1, 2))
    by_run = {
        (result.run.hps.lr, result.run.train.seed): result.val_loss
        for result in results
        if result.run.model.n_embd == 256
    }
    for value, losses in zip(found.log2_values, found.losses, strict=True):
        assert losses == tuple(by_run[2.0**value, seed] for seed in found.seeds)
    assert sum(found.n_missing) == sum(found.n_diverged) == 0


def test_results_are_found_though_their_runs_name_the_compute_type(tmp_path):
    spec = study_spec(write_tokens(tmp_path / "tokens"), axes={"width": [32]}, grids={"log2_lr": [-8, -7]}, arms={})
    study = spec.replace(train=spec.train.replace(dtype="auto"))
    directory = write_study(tmp_path / "study", study)
    stored = {directory.directory(identity).run.train.dtype for identity in directory.runs}
    assert stored == {resolved(run, "cpu").train.dtype for run in directory.runs.values()} != {"auto"}
    assert {row.result.status for row in directory.table().rows} == {"finished"}


def test_a_diverged_run_makes_its_value_infinite_and_a_missing_one_does_not_count():
    states = {(2.0**-4, 1): "diverged", (2.0**-5, 0): "failed", (2.0**-9, 2): "unfinished"}
    status = lambda run: states.get((run.hps.lr, run.train.seed), "finished")  # noqa: E731
    found = curve_at(table_of(small_study(), status=status), 2)
    assert found.n_diverged == (0, 0, 0, 0, 0, 1)
    assert found.n_missing == (1, 0, 0, 0, 1, 0)
    assert found.medians[-1] == math.inf
    assert found.medians[-2] == found.losses[-2][1]  # the only seed with a result at every value


def test_a_seed_at_the_zero_shot_value_only_does_not_bend_the_medians():
    shift = {0: 0.0, 1: 0.1, 2: -0.5}
    curve = Curve(
        axis="width",
        size=size_of(1.0),
        arm=Arm("expertp", BaseHPs(lr=2**-7)),
        hp="log2_lr",
        log2_values=(-8.0, -7.0, -6.0),
        losses=tuple(
            tuple(loss + shift[seed] if seed < 2 or loss == 3.1 else math.nan for seed in shift)
            for loss in (3.0, 3.1, 3.2)
        ),
        seeds=(0, 1, 2),
        n_missing=(0, 0, 0),
    )
    assert curve.losses[1] == (3.1, 3.2, 2.6)
    assert curve.medians == pytest.approx((3.05, 3.15, 3.25))
    assert curve.best_value == -8.0


def test_a_stopped_run_makes_its_value_infinite_and_is_not_counted_as_diverged():
    states = {(2.0**-4, 1): "stopped", (2.0**-4, 2): "diverged"}
    status = lambda run: states.get((run.hps.lr, run.train.seed), "finished")  # noqa: E731
    found = curve_at(table_of(small_study(), status=status), 2)
    assert (found.n_stopped[-1], found.n_diverged[-1], found.n_missing[-1]) == (1, 1, 0)
    assert sum(found.n_stopped) == 1
    assert found.medians[-1] == math.inf


@pytest.mark.heavy
def test_what_the_study_does_not_sweep_has_no_curve():
    table = table_of(load_study(EXAMPLE, []))
    own, sp = table.own, table.arm("sp")
    assert [each.size.scale for each in curves(table, "width", own, "log2_lr")] == [1, 2, 4]
    assert [each.size.scale for each in curves(table, "width", sp, "log2_lr")] == [1, 4]
    assert curves(table, "depth", sp, "log2_lr") == ()
    assert curves(table, "depth", own, "log2_init_std") == ()
    assert curve(table, "width", table.sizes("width")[1], sp, "log2_lr") is None


def test_zero_shot_losses_are_those_of_the_centre():
    table = table_of(small_study())
    found = curve_at(table, 2)
    assert table.zero_shot("width", found.size, table.own) == found.losses[found.log2_values.index(-6)]


def test_a_run_without_a_result_is_nan():
    table = StudyTable.join(small_study(), [])
    assert all(map(math.isnan, table.zero_shot("width", table.sizes("width")[1], table.own)))


def test_the_best_value_has_the_lowest_median_and_may_lie_on_the_edge():
    found = curve_at(table_of(small_study()), 1)
    assert (found.best_place, found.best_value, found.is_best_at_edge) == (3, -6.0, False)
    at_edge = curve_at(table_of(small_study(), optimum=-9.5), 1)
    assert (at_edge.best_place, at_edge.best_value, at_edge.is_best_at_edge) == (0, -9.0, True)
    lost = curve_at(table_of(small_study(), status=lambda _: "diverged"), 1)
    assert lost.best_place == 0
