"""`expertp planner` writes a page, and refuses what is no input of it."""

import html
import json
import re
import webbrowser
from collections.abc import Callable
from typing import Any

import pytest
from adapters.tiny import COMMON, TINY, wider

Say = Callable[..., tuple[int, str, str]]

ROW = "hps.lr=0.01"


def test_it_writes_the_page_and_replaces_only_its_own(say: Say, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert say("planner") == (0, "planner: planner.html\n", "")
    first = (tmp_path / "planner.html").read_text(encoding="utf-8")
    assert say("planner", ROW)[0] == 0
    assert (tmp_path / "planner.html").read_text(encoding="utf-8") != first
    (tmp_path / "mine.html").write_text("mine")
    code, _, error = say("planner", "--out", "mine.html")
    assert (code, error) == (2, "expertp: mine.html: exists and is not a planner of expertp; choose another --out\n")
    assert (tmp_path / "mine.html").read_text() == "mine"


def test_it_opens_the_page(say: Say, tmp_path, monkeypatch) -> None:
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    assert say("planner", "--out", tmp_path / "p.html", "--open")[0] == 0
    assert opened == [(tmp_path / "p.html").as_uri()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hps.lrr=1"], "hps.lrr"),
        (["model.d_head=32"], "d_head=32 in the target but 64 in the base"),
        (["--base", "missing.yaml"], "missing.yaml"),
        (["--hf", "a", "b", "--base", "c"], "--base does not go with --hf"),
        (["--hf", "a", "b", ROW], "a"),
        (["--out", "."], ".: exists and is not a planner"),
        (["--steps", "0"], "steps=0 is not positive"),
        (["hps.rules=native"], "hps.rules=native is the init of a model of transformers"),
    ],
)
def test_bad_input_is_one_line(say: Say, tmp_path, monkeypatch, arguments, message) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, error = say("planner", *arguments)
    assert (code, out) == (2, "")
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_adapted_model_has_the_settings_of_its_plan(say: Say, tmp_path) -> None:
    pytest.importorskip("transformers")
    models = ("tests/fixtures/hf/deepseek-v3-base.json", "tests/fixtures/hf/deepseek-v3.json")
    code, _, _ = say("planner", "--hf", *models, ROW, "hps.weight_decay=0.1", "--out", tmp_path / "p.html")
    assert code == 0
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    _, printed, _ = say("plan", "--hf", *models, ROW, "hps.weight_decay=0.1")
    row = next(line.split() for line in printed.splitlines() if line.startswith("expert_down"))
    for number in row[2:7]:
        assert f'<td class="number">{number}</td>' in page
    assert "m_N^-1/2 m_a^-1; m_N^-1 m_a^-1" in page
    assert "adapt(model, base=&#39;tests/fixtures/hf/deepseek-v3-base.json&#39;" in page
    assert "671B" in page
    assert "<td>rank of latent queries</td>" in page


def test_the_steps_of_the_target_reach_weight_decay(say: Say, tmp_path) -> None:
    def starts_with(*arguments: str) -> str:
        assert say("planner", *arguments, "--out", tmp_path / "p.html")[0] == 0
        return html.unescape((tmp_path / "p.html").read_text(encoding="utf-8"))

    assert '"train.steps":"700"' in starts_with("--steps", "700")
    pytest.importorskip("transformers")
    models = ("tests/fixtures/hf/deepseek-v3-base.json", "tests/fixtures/hf/deepseek-v3.json")
    tau = (ROW, "hps.weight_decay=0.1", "hps.decay=tau", "hps.tuned_steps=100")
    same, longer = starts_with("--hf", *models, *tau), starts_with("--hf", *models, *tau, "--steps", "1000")
    assert '"weight_decay": 0.1,' in same
    assert '"weight_decay": 0.01,' in longer
    assert f"plan --hf {' '.join(models)} --steps 1000 {ROW}" in longer
    assert "tuned_steps=100), steps=1000)" in longer


@pytest.mark.heavy
@pytest.mark.parametrize("is_part", [False, True], ids=["a text model", "the text part of a multimodal model"])
def test_the_python_of_an_adapted_model_runs(say: Say, tmp_path, is_part: bool) -> None:
    pytest.importorskip("transformers")
    for name, changes in (("base", {}), ("target", wider("llama4_text"))):
        keys = {"model_type": "llama4_text", **COMMON, **TINY["llama4_text"], **changes}
        (tmp_path / name).mkdir()
        whole = {"model_type": "llama4", "text_config": keys} if is_part else keys
        (tmp_path / name / "config.json").write_text(json.dumps(whole))
    files = (tmp_path / "base", tmp_path / "target")
    code, _, error = say("planner", "--hf", *files, ROW, "hps.gamma=0.5", "--out", tmp_path / "p.html")
    assert (code, error) == (0, "")
    page = html.unescape((tmp_path / "p.html").read_text(encoding="utf-8"))
    listing = re.search(r"from torch\.optim import AdamW\n.*?param_groups\(model\)\)\n", page, re.DOTALL)
    assert listing is not None
    found: dict[str, Any] = {}
    exec(listing[0], found)
    assert found["adapted"].hps.gamma == 0.5
    assert found["adapted"].fit.target.n_embd == 96
    assert {group["initial_lr"] for group in found["optimizer"].param_groups} > {0.01}
