"""`expertp demo`: its commands and files; ./run.sh runs the demo itself."""

from pathlib import Path

import pytest

from expertp.cli import demo
from expertp.cli.main import build_parser, main
from expertp.config import load_base, load_target
from expertp.study.cells import expand, unique_runs
from expertp.study.load import load_study

CONFIG = Path(__file__).parents[2] / "configs/demo.yaml"


def test_the_demo_is_made_of_commands_that_parse() -> None:
    for verb, *arguments in demo.commands(Path("demo"), 2, "data"):
        build_parser(verb).parse_intermixed_args(arguments)


def test_the_plan_is_that_of_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "commands", lambda *_: [])
    assert main(["demo", "--out", str(tmp_path)]) == 0
    study = load_study(tmp_path / "study.yaml")
    assert study == load_study(CONFIG, [f"train.data={tmp_path / 'data'}"])
    assert load_base(tmp_path / "base.yaml") == (study.base, study.hps)
    assert load_target(tmp_path / "target.yaml") == study.base.replace(n_embd=256)


def test_a_study_file_that_was_changed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "commands", lambda *_: [])
    changed = CONFIG.read_text().replace("n_embd: 64", "n_embd: 32")
    (tmp_path / "study.yaml").write_text(changed)
    assert main(["demo", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "study.yaml").read_text() == changed
    assert load_base(tmp_path / "base.yaml")[0].n_embd == 32


def test_somebodys_own_study_is_not_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["init", str(tmp_path / "mine")])
    before = {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    assert main(["demo", "--out", str(tmp_path / "mine")]) == 2
    assert "study.yaml: is not the demo's" in capsys.readouterr().err
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()}


def test_the_demo_goes_on_after_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(demo, "commands", lambda *_: [["coordcheck"], ["report"]])
    monkeypatch.setattr("expertp.cli.main.dispatch", lambda command: done.append(*command) or (len(done) == 1))
    assert demo.run(build_parser("demo").parse_args(["--out", str(tmp_path)])) == 0
    assert done == ["coordcheck", "report"]


def test_the_demo_stops_at_a_command_that_cannot_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "commands", lambda *_: [["status", str(tmp_path / "nowhere")], ["doctor"]])
    assert main(["demo", "--out", str(tmp_path)]) == 2


def test_the_demo_sweeps_the_base_and_the_largest_sp_in_both_hyperparameters() -> None:
    runs = unique_runs(expand(load_study(CONFIG)))
    for rules, n_embd in (("expertp", 64), ("sp", 64), ("sp", 256)):
        there = {(run.hps.lr, run.hps.init_std) for run in runs if (run.hps.rules, run.model.n_embd) == (rules, n_embd)}
        assert len({lr for lr, _ in there}) >= 5, (rules, n_embd)
        assert len({init for _, init in there}) >= 4, (rules, n_embd)
