"""Finished cells as tables and back, with runs that were written and not trained."""

import csv
import json
import math
from dataclasses import fields

import pytest
from runs import tiny_study, write_tokens

from expertp.errors import InputError
from expertp.paper.exchange import export_cells, import_cells, in_blocks
from expertp.report.reading import read
from expertp.store import write_ended_run
from expertp.study_store import open_study
from expertp.train import RunResult

STEPS = 12
GRID = (-8, -7, -6)
CENTRE = -7


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("data") / "tokens")


@pytest.fixture
def spec(tokens):
    """Two widths, three learning rates, two seeds, and a contrast: 16 runs."""
    spec = tiny_study(tokens, grid=GRID, steps=STEPS, eval_every=5)
    return spec.replace(
        hps=spec.hps.replace(lr=2.0**CENTRE), contrasts={"ones": {"axes": ["width"], "hps": {"bias_lr": 0.5}}}
    )


def is_diverged(run):
    return run.hps.lr == 2.0**-6 and run.model.n_embd == 64 and run.train.seed == 1


def record(step, loss):
    return {
        "step": step,
        "loss": loss,
        "val_loss": 3.0 + 0.1 * step if step % 5 == 0 or step == STEPS else None,
        "max_load_deviation": [0.01 * step, 0.02 * step],
        "dead_experts": [1, step],
        "tokens": 128 * step,
        "seconds": 0.5 * step,
    }


def losses_of(run):
    """Return losses that fall by 0.1 a step; a run that diverges has none at its last one."""
    losses = [5 - 0.1 * step + run.train.seed for step in range(1, STEPS + 1)]
    return [*losses[:6], None] if is_diverged(run) else losses


def write(directory, identity, val_loss=None):
    run = directory.runs[identity]
    records = [record(step, loss) for step, loss in enumerate(losses_of(run), 1)]
    step = 6 if is_diverged(run) else STEPS
    summary = {
        "status": "diverged" if is_diverged(run) else "finished",
        "step": step,
        "steps": STEPS,
        "tokens": 128 * step,
        "train_loss": records[-1]["loss"],
        "val_loss": None if is_diverged(run) else val_loss or math.pi * run.hps.lr + run.train.seed,
        "max_load_deviation": 1 / 3,
        "dead_experts": 2,
        "seconds": 6.123,
    }
    lines = "".join(json.dumps(each) + "\n" for each in records)
    write_ended_run(directory.place(identity), run, identity, directory.data_hash, summary, lines)


@pytest.fixture
def source(tmp_path, spec):
    """Return a study all of whose runs have ended but one."""
    directory = open_study(tmp_path / "source", spec)
    for identity in list(directory.runs)[1:]:
        write(directory, identity)
    directory.write_table()
    return directory


@pytest.fixture
def tables(tmp_path, source):
    (tmp_path / "tables").mkdir()
    export_cells(read(source), tmp_path / "tables")
    return tmp_path / "tables"


def test_results_that_went_out_and_in_are_equal(tmp_path, spec, source, tables):
    target = open_study(tmp_path / "target", spec)
    assert import_cells(target, tables) == len(target.runs) - 1 == 15
    assert target.results() == source.results()
    assert [each.status for each in target.results()].count("diverged") == 1
    assert target.results()[0].status == "missing"
    assert target.write_table() == source.results()
    assert (target.path / "results.csv").read_bytes() == (source.path / "results.csv").read_bytes()
    summaries = [[each.directory(identity).summary() for identity in list(each.runs)[1:]] for each in (source, target)]
    assert summaries[0] == summaries[1]
    assert {key for each in summaries[1] for key in each} == {field.name for field in fields(RunResult)}


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("NAME.csv", "train_loss", "loss", "no column 'train_loss'"),
        ("NAME.csv", ",12,", ",twelve,", "'twelve'"),
        ("NAME-metrics.csv", "val_loss", "loss", "no column 'val_loss'"),
    ],
)
def test_a_table_of_something_else_is_refused(tmp_path, spec, tables, name, old, new, said):
    path = tables / name.replace("NAME", spec.name)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError, match=f"not a table of runs.*{said}"):
        import_cells(open_study(tmp_path / "target", spec), tables)


def identity_of(directory, log2_lr=CENTRE, n_embd=32, seed=0):
    (found,) = (
        identity
        for identity, run in directory.runs.items()
        if (run.hps.lr, run.model.n_embd, run.train.seed) == (2.0**log2_lr, n_embd, seed) and run.hps.bias_lr == 0.05
    )
    return found


def test_a_row_of_metrics_stands_for_five_records(tmp_path, spec, tables):
    target = open_study(tmp_path / "target", spec)
    import_cells(target, tables)
    # Losses 4.9, 4.8 ... 3.8; of the loads the larger of two layers, 0.02 a step; the last block has two steps.
    assert target.directory(identity_of(target)).metrics() == [
        {
            "step": step,
            "loss": pytest.approx(loss),
            "val_loss": pytest.approx(val_loss),
            "max_load_deviation": [pytest.approx(deviation)],
            "dead_experts": [1 + step],
            "tokens": 128 * step,
            "seconds": 0.5 * step,
        }
        for step, loss, val_loss, deviation in [(5, 4.7, 3.5, 0.06), (10, 4.2, 4.0, 0.16), (12, 3.85, 4.2, 0.23)]
    ]


def test_a_validation_keeps_its_step_and_a_loss_that_is_none_is_left_out(tmp_path, spec, source):
    identity = identity_of(source)
    records = [
        {**record(step, None if step > 5 else 1.0), "val_loss": 3.0 if step == 2 else None} for step in range(1, 8)
    ]
    path = source.directory(identity).metrics_path
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    export_cells(read(source), tmp_path)
    target = open_study(tmp_path / "target", spec)
    import_cells(target, tmp_path)
    found = target.directory(identity).metrics()
    assert [(each["step"], each["loss"], each["val_loss"]) for each in found] == [
        (2, 1.0, 3.0),
        (5, 1.0, None),
        (7, None, None),
    ]
    assert in_blocks(found) == found


def test_metrics_are_of_the_whole_base_and_of_larger_models_at_its_hyperparameters(source, tables):
    with (tables / "test-metrics.csv").open() as file:
        found = {row["identity"] for row in csv.DictReader(file)}
    expected = {
        identity
        for identity, run in list(source.runs.items())[1:]
        if run.model.n_embd == 32 or run.hps.lr == 2.0**CENTRE
    }
    assert found == expected
    assert any(source.runs[each].hps.bias_lr == 0.5 and source.runs[each].model.n_embd == 64 for each in found)


def test_studies_that_share_cells_have_each_others_metrics(tmp_path, spec, tables):
    # Whichever study comes first, the base's grid has its records: the second one would not bring them.
    first = open_study(tmp_path / "studies" / "first", spec, "../../cells")
    import_cells(first, tables)
    second = open_study(tmp_path / "studies" / "second", spec.replace(axes={"width": [32]}), "../../cells")
    assert import_cells(second, tables) == 0
    assert len(second.directory(identity_of(second, log2_lr=-8)).metrics()) == 3


def test_nothing_is_imported_twice_or_over_what_is_there(tmp_path, spec, tables):
    target = open_study(tmp_path / "target", spec)
    own = identity_of(target, seed=1)
    write(target, own, val_loss=1.25)
    assert import_cells(target, tables) == 14
    assert import_cells(target, tables) == 0
    assert target.result(own).val_loss == 1.25
    assert len(target.directory(own).metrics()) == STEPS


def test_cells_that_the_study_does_not_mean_stay_outside(tmp_path, spec, tables):
    target = open_study(tmp_path / "target", spec.replace(grids={"log2_lr": [CENTRE]}, contrasts={}))
    assert len(target.runs) == 4
    assert import_cells(target, tables) == 4
    assert len(list((target.path / "runs").iterdir())) == 4
    other = open_study(tmp_path / "other", spec.replace(seeds=[5, 6]))
    assert import_cells(other, tables) == 0
    assert list((other.path / "runs").iterdir()) == []


def test_a_study_without_a_table_takes_nothing(tmp_path, spec, tables):
    target = open_study(tmp_path / "target", spec.replace(name="unknown"))
    assert import_cells(target, tables) == 0
    assert import_cells(target, tmp_path / "nowhere") == 0
