"""A study directory of the first format (`contrasts` in study.json, no column `arm`) opens, resumes and reports.

tests/fixtures/study-format-1 was written by that version on `write_tokens(path, 4000, 1200)`.
"""

import csv
import json
import shutil
from pathlib import Path

import pytest
from runs import write_tokens

from expertp.analysis.transfer import judge
from expertp.cli.main import main
from expertp.study.cells import arms, grid
from expertp.study.load import load_study
from expertp.study.store import open_study, read_study
from expertp.study.sweep import InProcess, sweep
from expertp.training.store import read_run

FIXTURE = Path(__file__).parents[1] / "fixtures/study-format-1"


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A copy of the fixture, with its data where its relative path points."""
    monkeypatch.chdir(tmp_path)
    write_tokens(tmp_path / "tokens", 4000, 1200)
    shutil.copytree(FIXTURE, tmp_path / "study")
    return read_study("study")


def earlier_rows():
    with (FIXTURE / "results.csv").open(newline="") as file:
        return {row["identity"]: row for row in csv.DictReader(file)}


def environment(path):
    return json.loads((path / "run.json").read_text())["environment"]


def test_it_opens_with_its_arms_refinements_and_runs(directory):
    assert [arm.name for arm in arms(directory.study)] == ["expertp", "sp", "larger init"]
    assert [arm.hps.rules for arm in arms(directory.study)] == ["expertp", "sp", "expertp"]
    assert grid(directory.study, "log2_lr", "width") == (-8, -7, -6)
    assert directory.runs_folder == "runs"
    assert directory.runs.keys() == earlier_rows().keys()
    assert all(directory.place(identity).is_dir() for identity in directory.runs)


def test_its_table_has_the_losses_of_its_results(directory):
    table, rows = directory.table(), earlier_rows()
    assert {result.identity: str(result.val_loss) for result in table.results} == {
        identity: row["val_loss"] for identity, row in rows.items()
    }
    # The column `contrast` was empty for the study's own arm.
    named = {row.result.identity: row.cell.arm.name for row in table.rows if row.cell.arm != table.own}
    assert named == {identity: row["contrast"] for identity, row in rows.items() if row["contrast"]}
    assert all(len(table.read_records(identity)) == 3 for identity in rows)


def test_its_verdict_is_found_again_where_the_test_has_not_changed(directory):
    """Verdicts come from another test now; the counts of runs and what was judged are the same."""
    earlier, now = json.loads((FIXTURE / "verdict.json").read_text()), judge(directory.table()).to_dict()
    assert [(each["axis"], each["hp"]) for each in now["axes"]] == [
        (each["axis"], each["hp"]) for each in earlier["axes"]
    ]
    assert all(now[key] == earlier[key] for key in ("study", "diverged", "failed", "missing"))


def test_its_results_are_written_with_the_same_numbers_and_the_names_of_arms(directory):
    directory.write_results()
    with (directory.path / "results.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    for row, before in zip(found, earlier_rows().values(), strict=True):
        assert row.pop("arm") == (before.pop("contrast") or "expertp")
        assert row == before


@pytest.mark.heavy
def test_a_run_that_is_removed_is_trained_again_to_the_same_loss(directory):
    rows = earlier_rows()
    gone = next(identity for identity, row in rows.items() if row["contrast"] == "sp")
    place = directory.place(gone)
    before, had = read_run(place).summary(), environment(place)
    untouched = {path: path.stat().st_mtime_ns for path in directory.path.glob("runs/*/*") if path.parent != place}
    shutil.rmtree(place)
    sweep(open_study(directory.path, directory.study), InProcess())
    after = read_run(place).summary()
    exactly = {name: environment(place)[name] == had[name] for name in ("torch", "device")}
    assert after.val_loss == (before.val_loss if all(exactly.values()) else pytest.approx(before.val_loss, rel=1e-4))
    assert (after.status, after.step, after.tokens) == (before.status, before.step, before.tokens)
    assert untouched == {path: path.stat().st_mtime_ns for path in untouched}


def test_its_study_file_is_read_and_resumed(directory):
    """The file said `contrasts:`; the same file and one with `arms:` are the study in the directory."""
    tree = json.loads((FIXTURE / "study.json").read_text())["study"]
    Path("study.yaml").write_text(json.dumps(tree))
    here = directory.study.train.replace(data=str(Path(directory.study.train.data).absolute()))
    assert load_study("study.yaml") == directory.study.replace(train=here)
    resumed = open_study("study", load_study("study.yaml", ["grids.log2_lr=[-9, -8, -7]"]))
    statuses = [result.status for result in resumed.results()]
    # A new value at two sizes of the study's own arm and one of sp, with three seeds each.
    assert (statuses.count("finished"), statuses.count("missing")) == (33, 9)


def test_status_reads_it(directory, capsys):
    assert main(["status", "study", "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert (tree["runs"]["total"], tree["runs"]["finished"]) == (33, 33)
    assert [(model["arm"], model["n_embd"], model["total"]) for model in tree["models"]] == [
        ("expertp", 32, 9), ("expertp", 64, 9), ("sp", 32, 9), ("larger init", 32, 2), ("sp", 64, 2),
        ("larger init", 64, 2),
    ]  # fmt: skip


@pytest.mark.heavy
def test_report_reads_it_with_its_coordinate_check_and_theory(directory, capsys):
    assert main(["report", "study"]) == 0
    assert "UNDECIDED" in capsys.readouterr().out
    page = Path("study/report.html").read_text()
    assert all(name in page for name in ("larger init", "coordcheck", "theory-error"))
    assert "theory-loss" not in page
