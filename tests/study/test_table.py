import math

import pytest
from runs import tiny_study, write_tokens
from synthetic import study_spec, write_study

from expertp.study.cells import expand, unique_runs
from expertp.study.table import Result, StudyTable, unique_results
from expertp.training.records import StepMetrics


def finished(run, loss=3.0):
    return Result(run, f"run {hash(run)}", "finished", 40, loss, loss, 0.02, 0, 1.0)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A study with several axes, grids and arms; every run has a different loss."""
    spec = study_spec(tmp_path_factory.mktemp("data"))
    runs = unique_runs(expand(spec))
    return StudyTable.join(spec, [finished(run, 3 + place / 1000) for place, run in enumerate(runs)])


@pytest.mark.heavy
def test_there_is_one_row_per_cell_with_the_result_of_its_run(table):
    assert tuple(row.cell for row in table.rows) == expand(table.study)
    assert all(row.result.run == row.cell.run for row in table.rows)
    assert len(table.results) == len(unique_runs(expand(table.study))) < len(table.rows)


@pytest.mark.parametrize("label", ["axis", "size", "arm", "hp", "value", "seed"])
def test_rows_are_selected_by_each_label(table, label):
    values = {getattr(row.cell, label) for row in table.rows}
    assert len(values) > 1
    found = [row for value in values for row in table.where(**{label: value})]
    assert {getattr(row.cell, label) for row in found} == values
    assert sorted(map(id, found)) == sorted(map(id, table.rows))


def test_no_label_selects_all_rows_and_unknown_values_none(table):
    assert table.where() == table.rows
    assert table.where(axis="depth") == ()
    assert table.where(axis="experts", hp="log2_init_std") == ()


def test_a_size_is_the_same_on_every_axis_that_has_it(table):
    base = table.base("width")
    assert base == table.base("alpha")
    assert {row.cell.axis for row in table.where(size=base)} == {"width", "experts", "alpha"}
    assert {row.cell.axis for row in table.where(size=base, arm=table.arm("sp"))} == {"width"}


def test_several_labels_select_one_cell(table):
    size = table.sizes("width")[1]
    (row,) = table.where(axis="width", size=size, arm=table.own, hp="log2_lr", value=-9, seed=2)
    assert (row.cell.run.model.n_embd, row.cell.run.hps.lr, row.cell.run.train.seed) == (64, 2.0**-9, 2)


def test_zero_shot_cells_are_those_without_a_hyperparameter(table):
    rows = table.where(axis="width", size=table.sizes("width")[2], arm=table.own, hp=None)
    assert [row.cell.seed for row in rows] == [0, 1, 2]
    assert {(row.cell.hp, row.cell.value) for row in rows} == {(None, None)}
    assert {row.cell.run.hps for row in rows} == {table.study.hps}
    assert table.zero_shot("width", table.sizes("width")[2], table.own) == tuple(row.result.loss for row in rows)
    assert table.zero_shot("experts", table.base("experts"), table.arm("sp")) == ()


def test_a_zero_shot_cell_and_the_grid_point_with_its_value_share_a_result(table):
    labels = {"axis": "width", "size": table.base("width"), "arm": table.own, "seed": 0}
    (zero_shot,), (swept,) = table.where(**labels, hp=None), table.where(**labels, hp="log2_lr", value=-7)
    assert zero_shot.result is swept.result
    assert zero_shot.cell != swept.cell


def test_axes_sizes_and_arms_are_those_of_the_study(table):
    assert table.axes == ("width", "experts", "alpha")
    assert [size.model.n_embd for size in table.sizes("width")] == [32, 64, 128]
    assert [size.is_base for size in table.sizes("experts")] == [True, False, False]
    assert [arm.name for arm in table.arms] == ["expertp", "sp", "fan_in_down"]
    assert table.own == table.arm("expertp") == table.arms[0]
    assert [table.axes_of(arm) for arm in table.arms] == [table.axes, ("width",), ("alpha",)]


def test_a_run_without_a_result_is_missing(tmp_path):
    study = tiny_study(write_tokens(tmp_path))
    first, *_ = runs = unique_runs(expand(study))
    table = StudyTable.join(study, [finished(first), finished(runs[1].replace(hps=study.hps.replace(lr=0.5)))])
    statuses = [result.status for result in table.results]
    assert (len(table.results), statuses.count("finished"), statuses.count("missing")) == (12, 1, 11)
    missing = next(result for result in table.results if result.status == "missing")
    assert (missing.identity, missing.val_loss, math.isnan(missing.loss)) == ("", None, True)
    assert all(row.result.run == row.cell.run for row in table.rows)


@pytest.mark.parametrize(
    ("status", "val_loss", "loss"),
    [("finished", 2.5, 2.5), ("diverged", None, math.inf), ("failed", None, math.nan), ("unfinished", 2.5, math.nan),
     ("missing", None, math.nan), ("finished", None, math.nan)],
)  # fmt: skip
def test_the_loss_of_a_result_is_final_or_says_why_there_is_none(tmp_path, status, val_loss, loss):
    run = unique_runs(expand(tiny_study(write_tokens(tmp_path))))[0]
    assert Result(run, "", status, val_loss=val_loss).loss == pytest.approx(loss, nan_ok=True)


def test_records_are_read_by_seed_and_only_of_runs_that_have_them(tmp_path):
    study, read = tiny_study(write_tokens(tmp_path), seeds=(0, 1, 2, 3)), []
    status = {0: "finished", 1: "diverged", 2: "unfinished", 3: "finished"}

    def read_records(identity):
        read.append(identity)
        return [StepMetrics(step=1, loss=float(identity))] if identity != "3" else []

    results = [
        Result(run, str(run.train.seed), status[run.train.seed])
        for run in unique_runs(expand(study))
        if run.hps == study.hps
    ]
    table = StudyTable.join(study, results, read_records)
    size = table.sizes("width")[1]
    found = table.zero_shot_records("width", size, table.own)
    assert found == table.records(table.where(axis="width", size=size, arm=table.own, hp=None))
    # Seed 2 has not ended, seed 3 has no records.
    assert {seed: [record.loss for record in records] for seed, records in found.items()} == {0: [0.0], 1: [1.0]}
    assert set(read) == {"0", "1", "3"}
    assert table.records(table.where(hp="log2_lr")) == {}


def test_unique_results_are_in_the_order_of_rows(table):
    rows = table.where(axis="alpha")
    assert unique_results(rows) == tuple(dict.fromkeys(row.result for row in rows))
    assert unique_results([]) == ()


def test_a_directory_gives_its_table_with_thinned_records(tmp_path):
    study = tiny_study(write_tokens(tmp_path / "tokens"))
    directory = write_study(tmp_path / "study", study, skip=lambda run: run.model.n_embd == 64)
    table = directory.table(thin=lambda records: records[::2])
    assert {result.status for result in table.results} == {"finished", "missing"}
    base, other = table.sizes("width")
    assert [len(records) for records in table.zero_shot_records("width", base, table.own).values()] == [2, 2]
    assert table.zero_shot_records("width", other, table.own) == {}
    assert all(math.isnan(loss) for loss in table.zero_shot("width", other, table.own))
    first = next(result.identity for result in table.results if result.status == "finished")
    assert table.read_records(first) is table.read_records(first)
