"""Commands that pages and terminals suggest: the command line accepts them, and paths are quoted."""

import json
import shlex
from html import unescape
from pathlib import Path

import pytest
from runs import study_tree, write_tokens
from synthetic import study_spec

from expertp.analysis.transfer import judge
from expertp.cli.main import build_parser, main
from expertp.config import load_spec
from expertp.report import commands
from expertp.study.load import build_study, load_study
from expertp.study.store import open_study, read_study
from expertp.study.sweep import InProcess, sweep
from expertp.theory.spec import TheorySpec

pytestmark = pytest.mark.usefixtures("in_process")

DIRECTORY = Path("my studies/first")


@pytest.mark.parametrize(
    ("command", "out"),
    [
        (commands.sweep(DIRECTORY), DIRECTORY),
        (commands.coordcheck(DIRECTORY), DIRECTORY / "coordcheck"),
        (commands.theory(DIRECTORY), DIRECTORY / "theory"),
    ],
)
def test_the_command_line_accepts_the_commands(command, out):
    program, verb, *arguments = shlex.split(command)
    assert program == "expertp"
    assert Path(build_parser(verb).parse_args(arguments).out) == out


def test_the_report_is_that_of_the_directory():
    program, verb, *arguments = shlex.split(commands.report(DIRECTORY))
    assert (program, verb) == ("expertp", "report")
    assert build_parser(verb).parse_args(arguments).directory == str(DIRECTORY)


@pytest.mark.heavy
def test_one_command_decides_all_open_verdicts_and_runs_as_printed(tmp_path, monkeypatch):
    tree = study_tree(write_tokens(tmp_path / "data"), eval_every=3)
    tree["grids"]["log2_lr"] = [-9, -8, -7, -6, -5]
    tree["axes"]["depth"] = {"sizes": [2, 3], "sweep": ["log2_lr"]}
    directory = open_study(tmp_path / "my study", build_study(tree, "study:"))
    before = len(directory.runs)
    table = sweep(directory, InProcess())
    found = commands.deciding(directory, table, judge(table))
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(found.command)
    assert program == "expertp"
    assert main([*arguments, "--minutes", "0.05", "--workers", "1"]) == 0
    assert {each.axis for each in read_study(directory.path).study.chosen} == {"width", "depth"}
    assert len(read_study(directory.path).runs) == before, "it begins with all cells, which are there"


def test_the_cost_of_the_next_look_is_said():
    assert str(commands.Deciding("expertp sweep x", 1, 3)) == "`expertp sweep x` (1 run next, about 3 min)"
    assert str(commands.Deciding("expertp sweep x", 0, 0)) == "`expertp sweep x`"


def test_a_study_with_missing_runs_is_swept_first(tmp_path):
    directory = open_study(tmp_path / "study", study_spec(write_tokens(tmp_path / "data")))
    found = commands.deciding(directory, directory.table(), judge(directory.table()))
    assert str(found) == f"`{commands.sweep(directory.path)}`"


@pytest.fixture
def tokens(tmp_path):
    return write_tokens(tmp_path / "my tokens")


def test_a_study_is_loaded_from_the_record_of_its_directory(tokens, tmp_path):
    directory = open_study(tmp_path / "study", study_spec(tokens, name="it's", refinements=[REFINED]))
    record = directory.path / "study.json"
    assert load_study(record) == directory.study
    assert load_study(record, ["seeds=[4, 5]"]).seeds == (4, 5)
    assert open_study(directory.path, load_study(record)).study == directory.study


REFINED = {"axis": "width", "hp": "log2_lr", "seeds": [7]}
CHANGES = (
    {"seeds": [0, 1]},
    {"train": {"steps": 7, "data": "other data"}},
    {"hps": {"lr": 0.01, "constants": {"router_lr": 0.5}}},
    {"base": {"n_layer": 3, "context": 8}},
    {"axes": {"width": [32, 128], "alpha": [2]}, "joint": {"all $": {"models": [{"n_embd": 64}]}}},
    {"arms": {"sp": {"axes": ["width"]}}, "verdict": None},
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_the_overrides_between_two_studies_turn_one_into_the_other(change, tokens, tmp_path):
    before = open_study(tmp_path / "study", study_spec(tokens))
    tree = before.study.to_dict()
    for name, value in change.items():
        tree[name] = {**tree[name], **value} if name in ("train", "hps", "base") else value
    if "train" in change:
        tree["train"]["data"] = str(tmp_path / tree["train"]["data"])
    after = build_study(tree, "after:")
    found = commands.overrides(before.study, after)
    assert found
    assert shlex.split(shlex.join(found)) == found
    assert load_study(before.path / "study.json", found) == after


def test_those_of_a_theory_start_from_its_defaults():
    wanted = ["eta=0.1", "gate=hard", "n_hid=16", "solver.nodes=32", "networks.sizes=[{N: 8, E: 4, n_hid: 4}]"]
    spec = load_spec(TheorySpec, None, wanted)
    found = commands.overrides(TheorySpec(), spec)
    assert len(found) == len(wanted)
    assert load_spec(TheorySpec, None, found) == spec
    back = commands.overrides(spec, TheorySpec())
    assert load_spec(TheorySpec, None, [*wanted, *back]) == TheorySpec()


@pytest.mark.heavy
def test_the_page_repeats_what_was_run_with_its_options(full, written_in_full):
    page = written_in_full.path.read_text(encoding="utf-8")
    listing = unescape(page.partition('id="commands-text">')[2].partition("</pre>")[0])
    parsed = {}
    for line in listing.splitlines():
        program, verb, *arguments = shlex.split(line)
        assert program == "expertp"
        parsed[verb] = build_parser(verb).parse_intermixed_args(arguments)
    assert list(parsed) == ["sweep", "coordcheck", "theory", "report"]
    assert load_study(parsed["sweep"].study_file, parsed["sweep"].overrides) == full.study
    check = parsed["coordcheck"]
    assert (check.steps, check.rules, check.out) == (40, None, f"{full.path}/coordcheck")
    assert load_study(check.study_file, check.overrides).seeds == (0, 1)
    asked = parsed["theory"]
    record = json.loads((full.path / "theory/compare.json").read_text(encoding="utf-8"))
    assert load_spec(TheorySpec, None, [asked.problem_file, *asked.overrides]).to_dict() == record["problem"]
    assert parsed["report"].directory == str(full.path)
