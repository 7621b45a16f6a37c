"""`expertp report`: what it prints, its exit codes, and the one line for a directory that is no study."""

import json
import math
import os
import re
import webbrowser

import pytest
from runs import write_tokens
from synthetic import final_loss, study_spec, write_study

from expertp.cli.main import main


@pytest.fixture(scope="module")
def moving(tmp_path_factory):
    """A small study whose optimum moves by two octaves when the width doubles."""
    path = tmp_path_factory.mktemp("cli") / "study"
    spec = study_spec(
        write_tokens(path.parent / "tokens"), axes={"width": {"sizes": [32, 64], "sweep": ["log2_lr"]}}, arms={}
    )

    def loss(run):
        octaves = 2 if run.model.n_embd == 64 else 0
        moved = run.replace(hps=run.hps.replace(lr=run.hps.lr * 2.0**octaves))
        return final_loss(moved)

    return write_study(path, spec, loss=loss, diverges=lambda _: False)


@pytest.mark.heavy
def test_it_prints_the_verdicts_and_where_the_page_is(moving, capsys):
    assert main(["report", str(moving.path)]) == 0
    out = capsys.readouterr().out
    assert re.search("^width +expertp +log2_lr +FAILS ", out, re.M)
    assert out.endswith(f"report: {moving.path}/report.html\n")
    assert (moving.path / "report.html").exists()


@pytest.mark.heavy
def test_a_failed_verdict_is_exit_code_3_when_strict(moving, capsys):
    assert main(["report", str(moving.path), "--strict", "--json"]) == 3
    tree = json.loads(capsys.readouterr().out)
    assert tree["report"] == f"{moving.path}/report.html"
    assert math.isclose(tree["axes"][0]["drift"], -2, abs_tol=0.2)


def test_a_directory_without_a_study_gets_one_line(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"expertp: {tmp_path}: no study here")
    assert "`expertp sweep`" in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.heavy
def test_a_report_is_written_again_only_when_something_has_happened(moving, capsys):
    page = moving.path / "report.html"
    main(["report", str(moving.path)])
    before = page.stat().st_ctime_ns
    capsys.readouterr()
    main(["report", str(moving.path)])
    assert "report (up to date): " in capsys.readouterr().out
    assert page.stat().st_ctime_ns == before
    summary = next(moving.path.glob("runs/*/summary.json"))
    os.utime(summary, (4e9, 4e9))  # only contents count, not times
    main(["report", str(moving.path)])
    assert page.stat().st_ctime_ns == before
    summary.write_text(f"{summary.read_text()} ")
    main(["report", str(moving.path)])
    assert page.stat().st_ctime_ns > before
    before = page.stat().st_ctime_ns
    main(["report", str(moving.path), "--force"])
    assert page.stat().st_ctime_ns > before
    (moving.path / "verdict.json").unlink()
    main(["report", str(moving.path)])
    assert (moving.path / "verdict.json").exists()


@pytest.mark.heavy
def test_a_page_elsewhere_writes_nothing_to_the_study(moving, tmp_path, capsys):
    main(["report", str(moving.path)])
    before = {path: path.stat().st_mtime_ns for path in moving.path.rglob("*")}
    out = tmp_path / "pages" / "moving.html"
    capsys.readouterr()
    assert main(["report", str(moving.path), "--out", str(out)]) == 0
    assert capsys.readouterr().out.endswith(f"report: {out}\n")
    assert sorted(path.name for path in out.parent.iterdir()) == [
        "moving-figures", "moving-verdict.json", "moving.html",
    ]  # fmt: skip
    assert {path: path.stat().st_mtime_ns for path in moving.path.rglob("*")} == before
    main(["report", str(moving.path), "--out", str(out)])
    assert "report (up to date): " in capsys.readouterr().out


def test_a_page_never_replaces_a_file_that_is_no_report(moving, capsys):
    study = moving.path / "study.json"
    before = study.read_bytes()
    assert main(["report", str(moving.path), "--out", str(study)]) == 2
    error = capsys.readouterr().err
    assert error == f"expertp: {study}: exists and is not a report of expertp; choose another --out\n"
    assert study.read_bytes() == before


@pytest.mark.heavy
@pytest.mark.parametrize("browser", ["works", "is missing", "fails"])
def test_a_browser_shows_the_page_and_none_is_no_failure(moving, browser, monkeypatch, capsys):
    asked = []

    def show(address):
        asked.append(address)
        if browser == "fails":
            raise webbrowser.Error("no runnable browser")
        return browser == "works"

    monkeypatch.setattr(webbrowser, "open", show)
    assert main(["report", str(moving.path), "--open"]) == 0
    page = moving.path / "report.html"
    assert asked == [page.as_uri()]
    expected = "" if browser == "works" else f"expertp: found no browser; open {page}\n"
    assert capsys.readouterr().err == expected
