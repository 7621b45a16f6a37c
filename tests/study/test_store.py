"""A study directory in which files are damaged or stray: the other runs are unaffected, and nothing is removed."""

import json
import os
import shutil
import warnings
from collections import Counter
from pathlib import Path

import pytest
from runs import tiny_study, write_tokens

from expertp.cli.main import main
from expertp.errors import DamagedError, InputError
from expertp.study.progress import ProgressWatch
from expertp.study.store import open_study, read_study, settle_device
from expertp.study.sweep import InProcess, sweep, work
from expertp.training.records import RunResult, StepMetrics
from expertp.training.resolution import resolved
from expertp.training.store import write_ended_run
from expertp.training.tail import RecordsTail


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("tokens"))


@pytest.fixture
def directory(tmp_path, tokens):
    """A study of eight runs that have ended."""
    study = tiny_study(tokens, grid=(-8,))
    directory = open_study(tmp_path / "study", study.replace(verdict=None))
    for identity, run in directory.runs.items():
        put(directory, identity, run)
    return directory


def put(directory, identity, run):
    result = RunResult("finished", 3, 3, 384, 4.0, 3.5, 0.1, 0, 1.0)
    records = [StepMetrics(step=step, loss=4.0) for step in (1, 2, 3)]
    where = directory.place(identity)
    write_ended_run(where, resolved(run, "cpu"), identity, directory.data_hash, result, records)


def statuses(directory):
    return [result.status for result in read_study(directory.path).results()]


DEEP, LONG = b"[" * 100_000, b'{"step": ' + b"9" * 5000 + b"}"
CONTENTS = {
    "empty": b"",
    "half": b'{"status": "finish',
    "not UTF-8": b"\xff\xfe",
    "null": b"null",
    "list": b"[]",
    "types": b'{"status": [], "identity": 1, "run": 2, "tries": "many"}',
    "deep": DEEP,
    "digits": LONG,
}


def damage(path, how):
    path.unlink(missing_ok=True)
    if how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "huge":
        with path.open("wb") as file:
            file.truncate(2**26 + 1)
    else:
        path.write_bytes(CONTENTS[how])


@pytest.mark.parametrize("how", [*CONTENTS, "folder", "pipe", "huge"])
@pytest.mark.parametrize("name", ["run.json", "summary.json"])
def test_a_damaged_record_is_the_status_of_its_run_only(directory, name, how):
    first, *others = directory.runs
    damage(directory.place(first) / name, how)
    results = {each.identity: each for each in read_study(directory.path).results()}
    assert (results[first].status, {results[each].status for each in others}) == ("damaged", {"finished"})
    assert f"{name}: damaged (" in results[first].error
    assert f"or remove {directory.place(first)} to train the run again" in results[first].error


def test_a_run_in_the_place_of_another_is_not_taken_for_it(directory):
    first, second, *_ = directory.runs
    one, other = directory.place(first), directory.place(second)
    one.rename(one.with_name("aside"))
    other.rename(one)
    assert statuses(directory)[:2] == ["damaged", "missing"]


@pytest.mark.parametrize("what", ["no run.json", "a file"])
def test_a_place_with_other_files_is_not_trained_in(directory, what):
    place = directory.place(next(iter(directory.runs)))
    (place / "run.json").unlink()
    if what == "a file":
        for path in place.iterdir():
            path.unlink()
        place.rmdir()
        place.write_text("mine")
    assert statuses(directory)[0] == "damaged"


def test_a_sweep_leaves_a_damaged_run_alone_and_trains_the_others(directory, monkeypatch):
    first, second, *_ = directory.runs
    (directory.place(first) / "summary.json").write_bytes(b"{")
    for path in directory.place(second).iterdir():
        path.unlink()
    before = {path: path.read_bytes() for path in directory.place(first).iterdir()}
    trained = []

    def train(run, *_, **__):
        trained.append(run)
        put(directory, second, run)
        return RunResult("finished", 3, 3, 384, 4.0, 3.5, 0.1, 0, 1.0)

    monkeypatch.setattr("expertp.study.sweep.train", train)
    table = sweep(directory, InProcess())
    assert Counter(result.status for result in table.results) == {"damaged": 1, "finished": 7}
    assert trained == [directory.runs[second]]
    assert {path: path.read_bytes() for path in directory.place(first).iterdir()} == before
    assert "damaged" in (directory.path / "results.csv").read_text()


def test_a_damaged_failure_is_listed_and_stays(directory, monkeypatch):
    first = next(iter(directory.runs))
    (directory.place(first) / "summary.json").unlink()
    path = directory.path / "failures" / f"{first}.json"
    path.write_bytes(b'{"tries": "x"}')
    (directory.path / "failures" / "notes.json").write_bytes(b"\xff")
    monkeypatch.setattr("expertp.study.sweep.train", None)
    results = sweep(directory, InProcess()).results
    assert [result.status for result in results].count("damaged") == 1
    assert f"remove {path} to let the run be tried again" in next(each.error for each in results if each.error)
    assert path.exists()
    assert (directory.path / "failures/notes.json").exists()


def test_stray_files_do_not_matter(directory):
    first = next(iter(directory.runs))
    leases = directory.path / "runs/.leases"
    (leases / first).mkdir(parents=True)
    for name in ("abc.json", "0.json", f"{10**30}.json", "-1.json", "²²².json", ".5.json.tmp"):
        (leases / first / name).write_text("{}")
    (leases / first / "1.json").write_bytes(b"\xff")
    (leases / "notes.txt").write_text("mine")
    (directory.path / "runs" / "notes.txt").write_text("mine")
    (directory.path / "runs" / "folder").mkdir()
    (directory.path / "failures" / f"{first}.json").write_bytes(b"a run that has ended needs no failure")
    progress = ProgressWatch(directory).look()
    assert (progress.counts["finished"], progress.running, progress.damaged) == (8, (), ())
    assert directory.was_at(os.getpid()) is None
    assert (leases / first / "1.json").exists()


def test_damaged_records_of_training_are_left_out_with_a_warning(directory):
    first = next(iter(directory.runs))
    metrics = directory.place(first) / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes().replace(b'"loss"', b'"l\xffss"', 1))
    table = directory.table()
    with pytest.warns(UserWarning, match=r"metrics.jsonl, line 1: damaged \(.*\); restore the file, or remove"):
        assert table.read_records(first) == ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(table.read_records(list(directory.runs)[1])) == 3
    assert RecordsTail(directory.metrics_path(first)).step() == 0


def test_a_file_that_cannot_be_read_is_no_damage(directory, monkeypatch):
    opened = Path.open

    def refuse(path, *arguments, **options):
        if path.name == "summary.json":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError):
        read_study(directory.path).results()


def test_status_lists_damaged_runs_and_exits_with_1(directory, capsys):
    (directory.place(next(iter(directory.runs))) / "summary.json").write_bytes(b"{")
    assert main(["status", str(directory.path)]) == 1
    out = capsys.readouterr().out
    assert "8 of 8 runs have ended (7 finished, 1 damaged)" in out
    assert "damaged; `expertp sweep` does not train them until they are restored or removed:\n  " in out
    assert main(["status", str(directory.path), "--json"]) == 1
    tree = json.loads(capsys.readouterr().out)
    assert (tree["runs"]["damaged"], len(tree["damaged"])) == (1, 1)


def test_status_says_that_nobody_is_at_work(directory, capsys, monkeypatch):
    monkeypatch.setattr("expertp.cli.next.is_read_by_people", lambda: True)
    main(["status", str(directory.path)])
    assert capsys.readouterr().err == f"next: expertp report {directory.path}\n"
    first = next(iter(directory.runs))
    (directory.place(first) / "summary.json").unlink()
    main(["status", str(directory.path)])
    out, err = capsys.readouterr()
    assert out.endswith("\nno worker is active\n")
    assert err == f"next: expertp sweep {directory.path}/study.json --out {directory.path}\n"
    with directory.at_work(first):
        main(["status", str(directory.path)])
    out, err = capsys.readouterr()
    assert "no worker" not in out
    assert err == f"next: expertp status {directory.path}\n"


def test_names_cannot_write_to_the_terminal(directory, capsys):
    record = json.loads((directory.path / "study.json").read_text())
    record["study"]["name"] = "x\x1b[2J"
    (directory.path / "study.json").write_text(json.dumps(record))
    assert main(["status", str(directory.path)]) == 2
    error = capsys.readouterr().err
    assert "the name 'x\\x1b[2J' has characters that cannot be printed" in error
    assert "\x1b" not in error


@pytest.mark.parametrize("how", [*CONTENTS, "folder", "pipe", "huge"])
def test_a_damaged_study_is_one_line_and_exit_code_2(directory, capsys, how):
    damage(directory.path / "study.json", how)
    assert main(["status", str(directory.path)]) == 2
    err = capsys.readouterr().err
    assert "study.json: damaged (" in err
    assert (err.count("\n"), len(err) <= 301) == (1, True)


def test_a_study_that_lost_its_file_is_taken_up_again_as_the_error_says(directory):
    study = directory.study
    directory.write_results()
    (directory.path / "study.json").unlink()
    assert {result.status for result in open_study(directory.path, study).results()} == {"finished"}


@pytest.mark.parametrize(
    "folder", ["/etc", "../../../etc", "..", ".", "../..", "a/b", "runs/", "../a/..", "~", "", "\x00"]
)
@pytest.mark.parametrize("key", ["runs", "cells"])
def test_runs_cannot_be_anywhere(directory, folder, key):
    record = {**json.loads((directory.path / "study.json").read_text()), "runs": None, key: folder}
    (directory.path / "study.json").write_text(json.dumps(record))
    if folder == "":
        assert read_study(directory.path).runs_folder == "runs"
        return
    with pytest.raises(InputError, match=r"is not a place for runs; give a name such as runs, or \.\./"):
        read_study(directory.path)


@pytest.mark.parametrize("folder", ["runs", "cells", "../shared", "../../cells"])
def test_runs_can_be_where_the_program_puts_them(directory, folder):
    record = {**json.loads((directory.path / "study.json").read_text()), "runs": None, "cells": folder}
    (directory.path / "study.json").write_text(json.dumps(record))
    assert read_study(directory.path).runs_folder == folder


def test_a_new_study_cannot_put_its_runs_anywhere(directory, tmp_path):
    with pytest.raises(InputError, match="is not a place for runs"):
        open_study(tmp_path / "new", directory.study, "/tmp")
    assert not (tmp_path / "new").exists()


def test_a_damaged_run_is_not_replaced_by_a_published_one(directory, tmp_path):
    from expertp.paper.results import export_results, import_results

    export_results(directory, tmp_path)
    summary = directory.place(next(iter(directory.runs))) / "summary.json"
    summary.write_bytes(b"{")
    assert import_results(directory, tmp_path) == 0
    assert summary.read_bytes() == b"{"


def test_a_worker_skips_damaged_runs(directory, monkeypatch):
    for identity in directory.runs:
        (directory.place(identity) / "summary.json").write_bytes(b"[]")
    monkeypatch.setattr("expertp.study.sweep.train", None)
    work(directory, should_stop=lambda: False)
    with pytest.raises(DamagedError, match=r"summary\.json: damaged"):
        directory.directory(next(iter(directory.runs))).summary()


def test_a_run_that_is_a_link_to_itself_is_damaged(directory, capsys):
    place = directory.place(next(iter(directory.runs)))
    shutil.rmtree(place)
    place.symlink_to(place.name)
    assert main(["status", str(directory.path)]) == 1
    assert "damaged (a link that leads to itself)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "how", "kind"),
    [
        ("results.csv", "folder", "file"),
        ("workers/0.log", "folder", "file"),
        ("workers/0.log", "pipe", "file"),
        ("failures", "pipe", "directory"),
        ("runs/.leases", "pipe", "directory"),
        ("runs/.leases/{run}", "pipe", "directory"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is(directory, name, how, kind):
    """Else study.json is written first, or all runs are trained before results.csv turns out to be a folder."""
    place = directory.path / name.format(run=next(iter(directory.runs)))
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    place.parent.mkdir(exist_ok=True)
    damage(place, how)
    record = directory.path / "study.json"
    record.write_text(json.dumps(json.loads(record.read_text())))  # would be written again
    before = record.read_bytes()
    with pytest.raises(InputError, match=f"{place}: is not a {kind}; move it away"):
        open_study(directory.path, directory.study)
    assert record.read_bytes() == before


def test_a_study_that_runs_elsewhere_gets_its_device_there(tokens, tmp_path, monkeypatch):
    study = tiny_study(tokens, dtype="auto", device="auto")
    monkeypatch.setattr("expertp.training.loop.resolve_device", None)  # the login node is not asked
    submitted = open_study(tmp_path / "study", study, trains_here=False)
    assert submitted.device == "auto"
    assert open_study(tmp_path / "study", study, trains_here=False) == submitted
    monkeypatch.setattr("expertp.training.loop.resolve_device", lambda _: "cuda")
    at_work = settle_device(read_study(tmp_path / "study"))
    assert submitted.settled() == at_work
    assert at_work.device == read_study(tmp_path / "study").device == "cuda"
    assert at_work.runs.keys() != submitted.runs.keys()  # `dtype: auto` is bfloat16 there
    assert open_study(tmp_path / "study", study, trains_here=False) == at_work
    monkeypatch.setattr("expertp.training.loop.resolve_device", lambda _: "cpu")
    with pytest.raises(InputError, match=r"was started on cuda, but .* would train on cpu; ask for machines with cuda"):
        settle_device(read_study(tmp_path / "study"))
    with pytest.raises(InputError, match="started on cuda and cannot continue on cpu"):
        open_study(tmp_path / "study", study)


def test_a_device_that_the_login_node_has_not_is_no_error_there(tokens, tmp_path):
    study = tiny_study(tokens, device="cuda")
    assert open_study(tmp_path / "study", study, trains_here=False).device == "cuda"
    assert read_study(tmp_path / "study").device == "cuda"
