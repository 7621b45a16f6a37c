"""The contract sees what waits for ever, and what is lost beside and among the program's own files."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz import contract
from fuzz.contract import Case, run_case, violations
from fuzz.templates import Templates

from expertp.cli import train as verb

ARGV = ("train", "run.yaml", "--out", "run")


@pytest.mark.parametrize("trains", [False, True])
def test_a_command_that_waits_for_ever_is_too_slow(
    trains: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(contract, "SECONDS", 1.0)
    monkeypatch.setattr(contract, "TRAINING_SECONDS", 0.3)
    monkeypatch.setattr(verb, "run", lambda _: len((tmp_path / "fifo").read_text()))
    case = Case("path", ARGV, trains=trains)
    [found] = violations(case, run_case(case, tmp_path))
    assert found.startswith("too slow: more than 1 s")


def test_a_long_training_is_asked_to_stop_and_does(templates: Templates, tmp_path: Path) -> None:
    templates.copy(tmp_path, "run.yaml", "tokens")
    case = Case("long", (*ARGV, "train.steps=1000000", "train.checkpoint_steps=1000000"), ("run",), trains=True)
    outcome = run_case(case, tmp_path)
    assert (outcome.code, violations(case, outcome)) == (143, [])


@pytest.mark.parametrize(
    ("act", "lost"),
    [
        (lambda: Path("run.yaml").write_text("{}"), "run.yaml"),
        (lambda: Path("run/step/notes.txt").unlink(), "run/step/notes.txt"),
        (lambda: Path("run/step").rename("run/left"), None),
        (lambda: Path("run/run.json").write_text("{}"), None),
    ],
)
def test_what_is_not_the_programs_own_is_not_lost(
    act: Callable[[], object], lost: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run" / "step").mkdir(parents=True)
    for name in ("run.yaml", "run/run.json", "run/step/notes.txt"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(verb, "run", lambda _: 0 * bool(act()))
    case = Case("lost", ARGV, ("run",), kept=("run/step/notes.txt",))
    found = violations(case, run_case(case, tmp_path))
    assert [each.split("; ")[0] for each in found] == ([f"changed with exit code 0: ['{lost}']"] if lost else [])
