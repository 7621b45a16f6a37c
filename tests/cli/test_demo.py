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
    target = load_target(tmp_path / "target.yaml")
    assert target.kappa == study.base.kappa
    assert target.counts().total > 10e9


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
    monkeypatch.setattr(demo, "commands", lambda *_: [["prepare"], ["report"]])
    monkeypatch.setattr("expertp.cli.main.run_verb", lambda verb, _: (done.append(verb) or (len(done) == 1), None))
    assert demo.run(build_parser("demo").parse_args(["--out", str(tmp_path)])) == 0
    assert done == ["prepare", "report"]


def test_the_demo_stops_at_a_command_that_cannot_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "commands", lambda *_: [["status", str(tmp_path / "nowhere")], ["doctor"]])
    assert main(["demo", "--out", str(tmp_path)]) == 2


def test_the_demo_sweeps_the_sizes_that_it_judges() -> None:
    study = load_study(CONFIG)
    runs = unique_runs(expand(study))
    for n_embd, n_exp in ((64, 4), (256, 4), (64, 16)):
        there = {run.hps.lr for run in runs if run.hps.rules == "expertp" and run.model.n_embd == n_embd
                 and (run.model.n_exp, run.model.n_layer, run.model.alpha_ffn) == (n_exp, 2, 1)}  # fmt: skip
        assert len(there) == 6
    assert {run.hps.lr for run in runs if run.hps.rules == "sp"} == {study.hps.lr}
    assert study.arms["sp"].control == ("width",)


def test_the_coordinate_check_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def check(*_: object) -> tuple[int, None]:
        print("a table\n\nPASS: 3 of 3 slopes are as expected\n")
        return 0, None

    monkeypatch.setattr("expertp.cli.main.run_verb", check)
    assert demo._in_one_line(["coordcheck"]) == 0
    assert capsys.readouterr().out == "PASS: 3 of 3 slopes are as expected\n"
