"""Results of finished runs as tables and back, with runs that were written and not trained."""

import csv
import math
from dataclasses import replace

import pytest
from runs import tiny_study, write_tokens

from expertp.errors import InputError
from expertp.paper.results import export_results, import_results, in_blocks
from expertp.study.early_stopping import Comparison
from expertp.study.store import open_study
from expertp.training.records import RunResult, StepMetrics
from expertp.training.resolution import resolved
from expertp.training.store import write_ended_run

STEPS = 12
GRID = (-8, -7, -6)
CENTRE = -7


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("data") / "tokens")


@pytest.fixture
def spec(tokens):
    """Two widths, three learning rates, two seeds, and an arm: 16 runs."""
    spec = tiny_study(tokens, grid=GRID, steps=STEPS, eval_every=5)
    return spec.replace(
        hps=spec.hps.replace(lr=2.0**CENTRE), arms={"ones": {"axes": ["width"], "hps": {"bias_lr": 0.5}}}
    )


def is_diverged(run):
    return run.hps.lr == 2.0**-6 and run.model.n_embd == 64 and run.train.seed == 1


def record(step, loss):
    return StepMetrics(
        step=step,
        loss=loss,
        val_loss=3.0 + 0.1 * step if step % 5 == 0 or step == STEPS else None,
        lr_factor=1.0,
        max_load_deviation=(0.01 * step, 0.02 * step),
        dead_experts=(1, step),
        tokens=128 * step,
        seconds=0.5 * step,
    )


def losses_of(run):
    """Return losses that fall by 0.1 per step; the last one of a run that diverges is nan."""
    losses = [5 - 0.1 * step + run.train.seed for step in range(1, STEPS + 1)]
    return [*losses[:6], math.nan] if is_diverged(run) else losses


def write(directory, identity, val_loss=None, records=None):
    run = directory.runs[identity]
    records = records or [record(step, loss) for step, loss in enumerate(losses_of(run), 1)]
    step = 6 if is_diverged(run) else STEPS
    result = RunResult(
        status="diverged" if is_diverged(run) else "finished",
        step=step,
        steps=STEPS,
        tokens=128 * step,
        train_loss=records[-1].loss if math.isfinite(records[-1].loss) else None,
        val_loss=None if is_diverged(run) else val_loss or math.pi * run.hps.lr + run.train.seed,
        max_load_deviation=1 / 3,
        dead_experts=2,
        seconds=6.123,
    )
    place, stored = directory.place(identity), resolved(run, directory.device)
    write_ended_run(place, stored, identity, directory.data_hash, result, records)


@pytest.fixture
def source(tmp_path, spec):
    """Return a study all of whose runs have ended but one."""
    directory = open_study(tmp_path / "source", spec)
    for identity in list(directory.runs)[1:]:
        write(directory, identity)
    directory.write_results()
    return directory


@pytest.fixture
def tables(tmp_path, source):
    (tmp_path / "tables").mkdir()
    export_results(source, tmp_path / "tables")
    return tmp_path / "tables"


def test_results_that_were_exported_and_imported_are_equal(tmp_path, spec, source, tables):
    target = open_study(tmp_path / "target", spec)
    assert import_results(target, tables) == len(target.runs) - 1 == 15
    assert target.results() == source.results()
    assert [each.status for each in target.results()].count("diverged") == 1
    assert target.results()[0].status == "missing"
    assert target.write_results() == source.results()
    assert (target.path / "results.csv").read_bytes() == (source.path / "results.csv").read_bytes()
    summaries = [[each.directory(identity).summary() for identity in list(each.runs)[1:]] for each in (source, target)]
    assert summaries[0] == summaries[1]
    for identity in list(target.runs)[1:]:
        assert (
            target.directory(identity).run == source.directory(identity).run == resolved(target.runs[identity], "cpu")
        )


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
        import_results(open_study(tmp_path / "target", spec), tables)


def test_a_table_of_an_earlier_version_is_read(tmp_path, spec, tables):
    path = tables / f"{spec.name}.csv"
    path.write_text(path.read_text().replace("identity,arm,", "identity,contrast,"))
    assert import_results(open_study(tmp_path / "target", spec), tables) == 15


def identity_of(directory, log2_lr=CENTRE, n_embd=32, seed=0):
    (found,) = (
        identity
        for identity, run in directory.runs.items()
        if (run.hps.lr, run.model.n_embd, run.train.seed) == (2.0**log2_lr, n_embd, seed) and run.hps.bias_lr == 0.05
    )
    return found


def test_a_row_of_metrics_stands_for_five_records(tmp_path, spec, tables):
    target = open_study(tmp_path / "target", spec)
    import_results(target, tables)
    # Losses 4.9, 4.8 ... 3.8; of the loads the larger of two layers, 0.02 per step; the last block has two steps.
    found = target.directory(identity_of(target)).metrics()
    expected = [(5, 4.7, 3.5, 0.06), (10, 4.2, 4.0, 0.16), (12, 3.85, 4.2, 0.23)]
    for each, (step, loss, val_loss, deviation) in zip(found, expected, strict=True):
        assert (each.loss, each.val_loss) == pytest.approx((loss, val_loss))
        assert each.max_load_deviation == pytest.approx((deviation,))
        assert (each.step, each.dead_experts, each.tokens, each.seconds) == (step, (1 + step,), 128 * step, 0.5 * step)
        assert math.isnan(each.lr_factor)
        assert each.bias_range == ()


def test_a_validation_keeps_its_step_and_an_unknown_loss_is_left_out(tmp_path, spec, source):
    identity = identity_of(source)
    records = [
        replace(record(step, math.nan if step > 5 else 1.0), val_loss=3.0 if step == 2 else None)
        for step in range(1, 8)
    ]  # fmt: skip
    write(source, identity, records=records)
    export_results(source, tmp_path)
    target = open_study(tmp_path / "target", spec)
    import_results(target, tmp_path)
    found = target.directory(identity).metrics()
    assert [(each.step, str(each.loss), each.val_loss) for each in found] == [
        (2, "1.0", 3.0),
        (5, "1.0", None),
        (7, "nan", None),
    ]
    assert list(map(repr, in_blocks(found))) == list(map(repr, found))


def test_metrics_are_of_the_whole_base_and_of_zero_shot_runs(source, tables):
    with (tables / "test-metrics.csv").open() as file:
        found = {row["identity"] for row in csv.DictReader(file)}
    expected = {
        identity
        for identity, run in list(source.runs.items())[1:]
        if run.model.n_embd == 32 or run.hps.lr == 2.0**CENTRE
    }
    assert found == expected
    assert any(source.runs[each].hps.bias_lr == 0.5 and source.runs[each].model.n_embd == 64 for each in found)


def test_studies_that_share_runs_have_each_others_metrics(tmp_path, spec, tables):
    # Whichever study comes first, the base's grid has its records: the second one would not bring them.
    first = open_study(tmp_path / "studies" / "first", spec, "../../runs")
    import_results(first, tables)
    second = open_study(tmp_path / "studies" / "second", spec.replace(axes={"width": [32]}), "../../runs")
    assert import_results(second, tables) == 0
    assert len(second.directory(identity_of(second, log2_lr=-8)).metrics()) == 3


def test_nothing_is_imported_twice_or_over_existing_runs(tmp_path, spec, tables):
    target = open_study(tmp_path / "target", spec)
    own = identity_of(target, seed=1)
    write(target, own, val_loss=1.25)
    assert import_results(target, tables) == 14
    assert import_results(target, tables) == 0
    assert target.result(own).val_loss == 1.25
    assert len(target.directory(own).metrics()) == STEPS


def test_runs_that_do_not_belong_to_the_study_are_not_imported(tmp_path, spec, tables):
    target = open_study(tmp_path / "target", spec.replace(grids={"log2_lr": [CENTRE]}, arms={}))
    assert len(target.runs) == 4
    assert import_results(target, tables) == 4
    assert len(list((target.path / "runs").iterdir())) == 4
    other = open_study(tmp_path / "other", spec.replace(seeds=[5, 6]))
    assert import_results(other, tables) == 0
    assert list((other.path / "runs").iterdir()) == []


def test_nothing_is_imported_without_a_table(tmp_path, spec, tables):
    target = open_study(tmp_path / "target", spec.replace(name="unknown"))
    assert import_results(target, tables) == 0
    assert import_results(target, tmp_path / "nowhere") == 0


def test_runs_that_were_stopped_early_are_imported_into_adaptive_studies_only(tmp_path, spec, tables):
    choice = {"axis": "width", "hp": "log2_lr", "values": GRID, "seeds": [0, 1]}
    adaptive = spec.replace(chosen=[choice])
    source = open_study(tmp_path / "adaptive", adaptive)
    for identity in source.runs:
        write(source, identity)
    stopped = identity_of(source, log2_lr=-8, n_embd=64)
    run, stop = source.runs[stopped], Comparison(step=6, train_loss=4.5, zero_shot_loss=4.0)
    result = RunResult("stopped", 6, STEPS, 128 * 6, 4.5, None, None, None, 1.5)
    write_ended_run(source.place(stopped), resolved(run, "cpu"), stopped, source.data_hash, result, [])
    source.note_stop(stopped, stop)
    export_results(source, tmp_path)
    target = open_study(tmp_path / "target", adaptive)
    assert import_results(target, tmp_path) == len(source.runs)
    assert target.results() == source.results()
    assert target.stop(stopped) == stop
    assert import_results(target, tmp_path) == 0
    whole = open_study(tmp_path / "whole", spec)
    assert import_results(whole, tmp_path) == len(source.runs) - 1
    assert whole.result(stopped).status == "missing"
