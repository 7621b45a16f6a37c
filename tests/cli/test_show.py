"""`expertp show`: what it prints loads back to the same settings, and says where each value comes from."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from expertp.config import load_base, load_run, load_spec, load_target
from expertp.study.load import load_study
from expertp.theory.spec import TheorySpec

Say = Callable[..., tuple[int, str, str]]
CONFIGS = Path(__file__).parents[2] / "configs"
CASES = {
    "run": (load_run, ["model.n_embd=256", "hps.constants={router_lr: 1/16}", "hps.gamma=.inf"]),
    "study": (load_study, ["axes.depth=[2, 4]", "seeds=[3, 4]", "verdict.nats=0.02", "name='1e5'"]),
    "base": (load_base, ["hps.lr=1/64"]),
    "target": (load_target, ["model.n_embd=1024"]),
    "theory": (lambda *given: load_spec(TheorySpec, *given), ["solver.replicates=2", "eta=0.1"]),
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("has_overrides", [False, True])
def test_what_is_shown_loads_back_to_the_same(kind: str, has_overrides: bool, tmp_path: Path, say: Say) -> None:
    load, overrides = CASES[kind]
    given = overrides if has_overrides else []
    code, out, _ = say("show", CONFIGS / f"{kind}.yaml", *given)
    assert code == 0
    assert out.startswith(f"# {kind} file {CONFIGS / kind}.yaml; values without a mark are those of the file\n")
    (tmp_path / "shown.yaml").write_text(out)
    assert load(tmp_path / "shown.yaml", []) == load(CONFIGS / f"{kind}.yaml", given)
    assert out.count("# override") == len(given)


def test_marks_say_where_values_come_from(say: Say) -> None:
    lines = say("show", CONFIGS / "run.yaml", "train.steps=500")[1].splitlines()
    marks = {line.split(":")[0].strip(): line.partition("#")[2].strip() for line in lines[1:]}
    assert (marks["steps"], marks["batch_tokens"], marks["seed"]) == ("override", "", "default")
    assert marks["base"] == "default"  # the model is its own base


def test_a_base_that_only_an_override_gives_is_not_a_default(say: Say) -> None:
    lines = say("show", CONFIGS / "run.yaml", "model.n_embd=256", "base.n_embd=128")[1].splitlines()
    assert lines[1] == "base:"
    assert lines[2].split() == ["n_embd:", "128", "#", "override"]


def test_json_has_all_settings_and_where_they_come_from(say: Say) -> None:
    tree = json.loads(say("show", CONFIGS / "theory.yaml", "eta=0.1", "--json")[1])
    assert (tree["kind"], tree["settings"]["n_hid"], tree["override"]) == ("theory", "Infinity", ["eta"])
    assert "optimizer" in tree["default"]


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("model: {n_embd: 64}", ["hps.lr=1"], "is not an override; write model.KEY=VALUE"),
        ("- 1", [], "expected a run, study, base, target or theory file, found list"),
        ("", [], "is empty; give a run, study, base, target or theory file"),
        ("modle: {}", [], "modle: unknown section; did you mean 'model'?"),
        ("{name: x, base: {}, hps: {}, train: {}, girds: {}}", [], "girds: unknown section; did you mean 'grids'?"),
        ("{model: {}, hps: {}, steps: 3}", [], "steps: unknown section"),
    ],
)
def test_a_file_of_no_kind_is_one_line(
    content: str, arguments: list[str], message: str, tmp_path: Path, say: Say
) -> None:
    (tmp_path / "file.yaml").write_text(content)
    code, out, err = say("show", tmp_path / "file.yaml", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_preset_can_be_a_whole_file(tmp_path: Path, say: Say) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(yaml.safe_load((CONFIGS / "run.yaml").read_text())))
    assert say("show", tmp_path / "run.yaml", "steps=5")[2].endswith("did you mean train.steps=5?\n")


def test_a_missing_file_is_named_once(tmp_path: Path, say: Say) -> None:
    missing = tmp_path / "none.yaml"
    assert say("show", missing)[2] == f"expertp: {missing}: no such file; `expertp init` writes starter files\n"


def test_a_base_may_have_a_model_of_transformers_which_plan_takes_with_hf(say: Say, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text((CONFIGS.parent / "tests/fixtures/hf/olmoe-1b-7b.json").read_text())
    (tmp_path / "base.yaml").write_text("model: {hf: config.json, context: 512}\nhps: {lr: 0.01}\n")
    (tmp_path / "target.yaml").write_text("model: {hf: config.json}\n")
    tree = json.loads(say("show", tmp_path / "base.yaml", "--json")[1])
    assert (tree["kind"], tree["settings"]["model"]["context"]) == ("base", 512)
    assert tree["settings"]["model"]["hf"]["model_type"] == "olmoe"
    tree = json.loads(say("show", tmp_path / "target.yaml", "model.context=64", "--json")[1])
    assert (tree["settings"]["model"]["context"], tree["override"]) == (64, ["model.context"])
    code, _, error = say("plan", "--base", tmp_path / "base.yaml", "--target", tmp_path / "target.yaml")
    assert (code, error.count("\n")) == (2, 1)
    assert "base.yaml: model: is a model of transformers; plan it by its config.json with --hf BASE TARGET" in error
