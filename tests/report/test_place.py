"""A report is current by the contents of what it shows, and is replaced as a whole, also when it is killed."""

import json
import os
import shutil
import time
from importlib import metadata

import pytest
from runs import write_tokens
from synthetic import study_spec, write_study

from expertp.errors import BusyError, InputError
from expertp.figures.save import Drawing
from expertp.report import place as module
from expertp.report.place import Place, digest_of, place_of
from expertp.study.store import read_study
from expertp.util.files import exclusive

OLD, NEW = "1" * 64, "2" * 64


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("place") / "study"
    spec = study_spec(write_tokens(path.parent / "tokens"), axes={"width": [32, 64]}, arms={})
    return write_study(path, spec, diverges=lambda _: False).path


@pytest.fixture
def study(stored, tmp_path):
    shutil.copytree(stored, tmp_path / "study")
    return tmp_path / "study"


def page(digest):
    return f'<meta name="expertp-digest" content="{digest}">'.encode()


def write(place, digest):
    content = digest[:1]
    drawings = [Drawing(name, content, content.encode(), content) for name in ("curves", "drift")]
    with place.replacing():
        place.replace(page(digest), content.encode(), drawings)


@pytest.mark.parametrize(
    "change",
    [
        lambda study: next(study.glob("runs/*seed0*/summary.json")),
        lambda study: next(study.glob("runs/*seed1*/run.json")),
        lambda study: next(study.glob("runs/*lr0.00781-init0.0625*/metrics.jsonl")),
        lambda study: study / "coordcheck" / "coordcheck.json",
        lambda study: study / "coordcheck-sp" / "coordcheck.svg",
        lambda study: study / "theory" / "compare.json",
        lambda study: study / "theory" / "loss.svg",
        lambda study: study / "failures" / f"{next(iter(read_study(study).runs))}.json",
    ],
)
def test_a_change_of_what_is_shown_changes_the_digest(study, change):
    before = digest_of(read_study(study))
    path = change(study)
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(" ")
    assert digest_of(read_study(study)) != before


def test_times_of_files_do_not_count_and_those_from_the_future_freeze_nothing(study):
    before = digest_of(read_study(study))
    summary = next(study.glob("runs/*/summary.json"))
    os.utime(summary, (2e9, 2e9 + 1e9))
    assert digest_of(read_study(study)) == before
    summary.write_text(summary.read_text(encoding="utf-8") + " ", encoding="utf-8")
    assert digest_of(read_study(study)) != before


def test_a_run_that_goes_and_another_version_change_the_digest(study, monkeypatch):
    before = digest_of(read_study(study))
    monkeypatch.setattr(module, "version", lambda name: f"{metadata.version(name)}.1")
    assert digest_of(read_study(study)) != before
    monkeypatch.undo()
    next(study.glob("runs/*/summary.json")).unlink()
    assert digest_of(read_study(study)) != before


@pytest.mark.parametrize(
    "file",
    [
        *("runs/*seed1*/run.json", "runs/*seed0*/summary.json", "runs/*lr0.00781-init0.0625*/metrics.jsonl"),
        *("coordcheck/coordcheck.svg", "failures/IDENTITY.json", "report.html"),
    ],
)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "endless"])
def test_a_pipe_and_an_endless_device_have_no_content(study, file, make):
    directory = read_study(study)
    path = next(study.glob(file), study / file.replace("IDENTITY", next(iter(directory.runs))))
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)
    digest = digest_of(directory)
    path.rmdir()
    make(path)
    assert digest_of(directory) == digest
    place = place_of(study)
    place.figures.mkdir(exist_ok=True)
    place.verdict.write_text("{}", encoding="utf-8")
    assert not place.is_current(digest)


@pytest.mark.slow
def test_the_digest_of_many_runs_takes_less_than_a_second(tmp_path):
    spec = study_spec(write_tokens(tmp_path / "tokens"), seeds=list(range(10)))
    directory = read_study(write_study(tmp_path / "study", spec).path)
    assert len(directory.runs) > 500
    started = time.process_time()
    digest_of(directory)
    assert time.process_time() - started < 2  # about 0.3 s on an idle machine


def test_a_page_is_current_only_if_all_of_the_report_is_there(tmp_path):
    place = place_of(tmp_path)
    assert not place.is_current(OLD)
    write(place, OLD)
    assert place.is_current(OLD)
    assert not place.is_current(NEW)
    place.verdict.unlink()
    assert not place.is_current(OLD)
    write(place, OLD)
    place.page.write_text("<html>", encoding="utf-8")
    assert not place.is_current(OLD)


def fail_at(monkeypatch, moment, error):
    """Fail at the n-th write or rename of a report."""
    calls = iter(range(1000))

    def failing(original):
        def called(*arguments, **options):
            if next(calls) == moment:
                raise error
            return original(*arguments, **options)

        return called

    for name in ("write_durably", "move_into_place"):
        monkeypatch.setattr(module, name, failing(getattr(module, name)))
    monkeypatch.setattr("expertp.util.files.write_durably", failing(module.write_durably))
    monkeypatch.setattr("expertp.report.place.os.replace", failing(os.replace))


@pytest.mark.parametrize("is_killed", [False, True], ids=["interrupted", "killed"])
def test_at_any_moment_there_is_an_old_page_or_a_new_one(tmp_path, monkeypatch, is_killed):
    outcomes = set()
    for moment in range(100):
        place = place_of(tmp_path / str(moment))
        write(place, OLD)
        try:
            with monkeypatch.context() as patch:
                fail_at(patch, moment, KeyboardInterrupt)
                if is_killed:  # nothing is cleaned
                    patch.setattr(module.shutil, "rmtree", lambda *_, **__: None)
                write(place, NEW)
        except KeyboardInterrupt:
            outcomes.add(place.page.read_bytes())
            assert place.page.read_bytes() in (page(OLD), page(NEW))
            assert place.parts.exists() == is_killed
            assert not (is_killed and (place.is_current(OLD) or place.is_current(NEW)))
            write(place, NEW)
            assert sorted(path.name for path in place.page.parent.iterdir()) == [
                "figures", "report.html", "verdict.json",
            ]  # fmt: skip
            assert {path.read_bytes() for path in place.figures.iterdir()} == {b"2"}
            assert len(list(place.figures.iterdir())) == 6
            assert place.is_current(NEW)
        else:
            break
    assert moment > 20
    assert page(OLD) in outcomes


def test_two_reports_at_once_are_one_line(tmp_path):
    place = place_of(tmp_path)
    with exclusive(place.parts, "busy"), pytest.raises(BusyError, match=r"report\.html: another process"):
        write(place, NEW)
    write(place, NEW)
    assert place.is_current(NEW)


def test_a_page_elsewhere_has_its_files_beside_it_and_overwrites_no_other_file(tmp_path):
    place = place_of(tmp_path, tmp_path / "pages" / "first.html")
    assert place == Place(
        tmp_path / "pages/first.html", tmp_path / "pages/first-figures", tmp_path / "pages/first-verdict.json"
    )
    write(place, OLD)
    write(place_of(tmp_path, place.page), NEW)
    notes = tmp_path / "notes.txt"
    notes.write_text("mine", encoding="utf-8")
    for taken in (notes, tmp_path):
        with pytest.raises(InputError, match="exists and is not a report of expertp; choose another --out"):
            place_of(tmp_path, taken)
    assert json.loads(place.verdict.read_text(encoding="utf-8")) == 2
