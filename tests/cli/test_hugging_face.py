"""Runs, studies and coordinate checks of models of transformers on the command line."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hugging_face import model_tree, run_tree, study_tree
from runs import write_tokens

from expertp.config import build
from expertp.search.tune import descend
from expertp.spec import BaseHPs

pytestmark = pytest.mark.usefixtures("in_process")

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[hf]'")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("tokens"), 4000, 1000)


def written(path: Path, tree: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.mark.heavy
def test_a_study_is_swept_checked_and_reported(say, data: Path, tmp_path: Path) -> None:
    file, out = written(tmp_path / "study.yaml", study_tree(data)), tmp_path / "out"
    assert say("sweep", file, "--out", out, "--workers", "1")[0] == 0
    code, text, _ = say("status", out, "--json")
    assert code == 0
    status = json.loads(text)
    models = status["models"]
    assert {(each["arm"], each["n_embd"], each["n_layer"]) for each in models} == {
        *(("expertp", *size) for size in ((32, 2), (64, 2), (32, 4))),
        *(("native", *size) for size in ((32, 2), (64, 2))),
    }
    assert "N64 L2 E4A2 a0.5 olmoe" in say("status", out)[1]
    rows = (out / "results.csv").read_text().splitlines()
    assert len(rows) - 1 == status["runs"]["total"]
    assert all(",finished," in row for row in rows[1:])
    before = sorted(out.rglob("summary.json"), key=str)
    times = [path.stat().st_mtime_ns for path in before]
    assert say("sweep", file, "--out", out, "--workers", "1")[0] == 0
    assert times == [path.stat().st_mtime_ns for path in before]  # nothing is trained again
    assert say("coordcheck", file, "--out", tmp_path / "check", "--steps", "3")[0] in (0, 1)
    slopes = json.loads((tmp_path / "check" / "coordcheck.json").read_text())["slopes"]
    assert {"stream", "router", "expert_down", "moe_output"} <= {each["module"] for each in slopes}
    assert say("report", out)[0] == 0
    page = (out / "report.html").read_text()
    assert "folded into the tensors" in page
    assert "mlp.experts.down_proj" in page


@pytest.mark.heavy
def test_a_study_is_swept_until_it_is_decided(say, data: Path, tmp_path: Path) -> None:
    tree = study_tree(data)
    del tree["arms"]
    file, out = written(tmp_path / "study.yaml", tree), tmp_path / "out"
    command = ("sweep", file, "--out", out, "--until", "decided", "--minutes", "0.2", "--workers", "1")
    code, text, error = say(*command)
    assert (code, "Traceback" in error) == (0, False)
    assert "width" in text
    rows = (out / "results.csv").read_text().splitlines()
    assert any(",finished," in row for row in rows[1:])
    chosen = json.loads((out / "study.json").read_text())["study"]["chosen"]
    assert {each["hp"] for each in chosen} == {"log2_lr"}


@pytest.mark.heavy
def test_the_hyperparameters_of_a_base_are_tuned(say, data: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("expertp.search.tune.COORDINATES", ("lr", "router_lr"))
    monkeypatch.setattr("expertp.search.tune.descend", partial(descend, coordinates=("lr", "router_lr")))
    tree = {**study_tree(data), "seeds": [0, 1, 2]}
    del tree["arms"]
    file, out = written(tmp_path / "study.yaml", tree), tmp_path / "tuned"
    code, text, error = say("tune", file, "--out", out, "--passes", "1", "--workers", "1")
    assert (code, "Traceback" in error) == (0, False), error
    preset = yaml.safe_load((out / "preset.yaml").read_text())
    assert build(BaseHPs, preset["hps"], "preset").lr > 0
    rows = (out / "path.csv").read_text().splitlines()
    assert {row.split(",")[1] for row in rows[1:]} >= {"lr", "router_lr"}
    assert str(out / "preset.yaml") in text


@pytest.mark.heavy
def test_a_run_is_trained_resumed_and_shown(say, data: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "run.yaml", {**run_tree(data, "deepseek_v3")})
    code, _, text = say("train", file, "--out", tmp_path / "run", "train.steps=2", "model.hf.num_hidden_layers=3")
    assert code == 0
    assert "n_embd 32, n_layer 3, E4A2, alpha_ffn 0.5" in text
    assert json.loads((tmp_path / "run" / "run.json").read_text())["run"]["model"]["hf"]["num_hidden_layers"] == 3
    assert "model_type: deepseek_v3" in say("show", file)[1]


def test_a_configuration_file_is_found_beside_the_run_file(say, data: Path, tmp_path: Path) -> None:
    model = model_tree("olmoe")
    (tmp_path / "config.json").write_text(json.dumps(model["hf"]))
    tree = run_tree(data, "olmoe", model={**model, "hf": "config.json"}, base=model)
    assert say("train", written(tmp_path / "run.yaml", tree), "--out", tmp_path / "run", "train.steps=1")[0] == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["run"]["model"] == model


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("base.hf.model_type=olmoo", "model_type 'olmoo' is not a known family; did you mean 'olmoe'?"),
        ("base.hf.model_type=jamba", "model_type 'jamba' is not supported"),
        ("base.hf.norm_topk_probb=true", "has no such key; did you mean 'norm_topk_prob'?"),
        ("base.n_embd=64", "n_embd: unknown key; choose one of hf, context"),
        ("axes.width=[32, 40]", "axes.width: n_embd=40 needs num_attention_heads=2.5"),
        ("axes={experts: [4, 5]}", "5 experts would have 2.5 active"),
        ("axes={fixed_topk: [4, 8]}", "set allow_kappa_change: true if the change is intended"),
        ("joint={both: {models: [{d_head: 8}]}}", "a size has no 'd_head'"),
        ("train.balance=proportional", "'olmoe' has no selection bias; set train.balance=aux_loss or none"),
    ],
)
def test_a_bad_study_is_one_line(say, data: Path, tmp_path: Path, override: str, message: str) -> None:
    tree = study_tree(data)
    tree.pop("arms")
    code, _, error = say("sweep", written(tmp_path / "study.yaml", tree), "--out", tmp_path / "out", override)
    assert code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_experts": 8}, "kappa=n_act/n_exp=1/4 in the target but 1/2 in the base"),
        ({"num_attention_heads": 4, "num_key_value_heads": 4}, "head_dim of attention is 8 in the target but 16"),
        ({"norm_topk_prob": True}, "the gate is a mean in the target but all in the base"),
    ],
)
def test_a_run_of_another_architecture_is_one_line(
    say, data: Path, tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    tree = run_tree(data, "olmoe", model=model_tree("olmoe", **keys), base=model_tree("olmoe"))
    code, _, error = say("train", written(tmp_path / "run.yaml", tree), "--out", tmp_path / "out")
    assert code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.heavy
def test_without_transformers_the_error_names_the_extra(data: Path, tmp_path: Path) -> None:
    """The package is hidden, as in the base install; a run of the reference model does not need it."""
    file = written(tmp_path / "run.yaml", run_tree(data, "olmoe"))
    code = (
        "import sys; sys.modules['transformers'] = None; from expertp.cli.main import main; "
        f"sys.exit(main(['train', {str(file)!r}, '--out', {str(tmp_path / 'out')!r}]))"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert made.returncode == 2
    assert "transformers is not installed; pip install" in made.stderr
    assert len(made.stderr.strip().splitlines()) == 1
