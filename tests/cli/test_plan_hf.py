"""`expertp plan --hf`: published configurations of large models, without weights."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from adapters.tiny import COMMON, TINY

from expertp.adapters.families import FAMILIES
from expertp.adapters.family import Family
from expertp.cli.main import main

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[hf]'")

CONFIGS = Path(__file__).parents[1] / "fixtures" / "hf"
HPS = ("hps.lr=0.01", "hps.weight_decay=0.1")


def files(model: str) -> tuple[str, str, str]:
    return "--hf", str(CONFIGS / f"{model}-base.json"), str(CONFIGS / f"{model}.json")


def planned(capsys: pytest.CaptureFixture[str], model: str, *arguments: str) -> str:
    assert main(["plan", *files(model), *HPS, *arguments]) == 0
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    return shown.err


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("model", "total", "active", "tensors"),
    [("deepseek-v3", 671e9, 37e9, 909), ("gpt-oss-120b", 116.83e9, 5.13e9, 615)],
)
def test_published_models_are_planned_in_a_second_after_imports_with_their_published_counts(
    capsys: pytest.CaptureFixture[str], model: str, total: float, active: float, tensors: int
) -> None:
    """Active: without idle experts and without the input embedding, which is a lookup; MTP layers are left out."""
    planned(capsys, model)
    started = time.process_time()
    plan: dict[str, Any] = json.loads(planned(capsys, model, "--json"))
    assert time.process_time() - started < 1
    assert plan["parameters"]["total"] == pytest.approx(total, rel=0.005)
    assert plan["parameters"]["active"] == pytest.approx(active, rel=0.02)
    assert len(plan["tensors"]) == tensors
    assert {"name", "role", "shape", "start", "init_std", "lr", "weight_decay", "adam_eps", "fold"} <= set(
        plan["tensors"][0]
    )


def test_the_table_has_a_row_per_role_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = planned(capsys, "gpt-oss-120b").splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if line}
    tensors, init, lr, decay, eps, fold = map(float, rows["expert_down"])
    assert (tensors, fold) == (36, pytest.approx(1 / 3, rel=1e-3))
    assert (init, lr, decay) == pytest.approx((0.02 / 2 / 3, 0.01 / 4 / 3, 0.1 * 4 * 3), rel=1e-3)
    assert eps == pytest.approx(1e-12 / (4 * 3 * 2) * 3, rel=1e-3)
    assert rows["final_norm"][1] == "=0.25"
    table = [line for line in lines if line.startswith(("role", "expert", "attn"))]
    assert max(map(len, table)) <= 80
    assert any(
        "multiply the base's auxiliary-loss coefficient by 0.5; that loss is off unless" in line for line in lines
    )


@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        ("deepseek_v2", "balance: the family has neither selection bias nor auxiliary loss"),
        ("deepseek_v3", "balance: selection bias on sigmoid gates, bias_lr 0.1; it has no auxiliary loss"),
        (
            "minimax_m2",
            "bias_lr 0.1; with an auxiliary loss, multiply the base's auxiliary-loss coefficient by 1; that",
        ),
    ],
)
def test_the_plan_says_how_loads_are_balanced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_type: str, words: str
) -> None:
    keys = {"model_type": model_type, **COMMON, **TINY[model_type]}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    assert main(["plan", "--hf", str(tmp_path), str(tmp_path), "hps.lr=0.01"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if words in line]


def test_roles_are_those_of_the_family(capsys: pytest.CaptureFixture[str]) -> None:
    lines = planned(capsys, "gpt-oss-120b", "--roles").splitlines()
    assert "model.layers.#.mlp.experts.down_proj | expert_down + | E H N  # 128 x 2880 x 2880" in lines
    assert not any("?" in line for line in lines)


@pytest.mark.parametrize("model", ["gpt-oss-120b", "deepseek-v3"])
def test_the_roles_that_are_printed_are_a_roles_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str
) -> None:
    text = planned(capsys, model, "--roles")
    has_bias = model == "deepseek-v3"
    assert ("| expert_bias | E  # 256" in text, "selection: sigmoid" in text) == (has_bias, has_bias)
    (tmp_path / "roles.txt").write_text(text)
    ours = json.loads(planned(capsys, model, "--roles-file", str(tmp_path / "roles.txt"), "--json"))
    theirs = json.loads(planned(capsys, model, "--json"))
    assert ours == theirs
    (tmp_path / "roles.txt").write_text(text.replace("gate: mean", "gate: ?"))
    arguments = (*files(model), *HPS, "--roles-file", str(tmp_path / "roles.txt"))
    assert "roles: gate is not known yet; replace its '?' by mean or all or sum" in refusal(capsys, *arguments)


@pytest.mark.parametrize("flags", [("--json", "--export", "torchtitan"), ("--roles", "--json")])
def test_one_output_at_a_time(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]) -> None:
    assert "not allowed with argument" in refusal(capsys, *files("gpt-oss-120b"), *HPS, *flags)


@pytest.mark.parametrize(
    ("steps", "words"), [("5000", "5000 steps in the target but hps.tuned_steps=1000"), ("1000", "")]
)
@pytest.mark.parametrize("output", [(), ("--json",), ("--export", "automodel")])
def test_another_number_of_steps_than_the_base_was_tuned_with_is_a_warning(
    capsys: pytest.CaptureFixture[str], steps: str, words: str, output: tuple[str, ...]
) -> None:
    arguments = (*files("gpt-oss-120b"), *HPS, "hps.tuned_steps=1000", "--steps", steps, *output)
    assert main(["plan", *arguments]) == 0
    warning = capsys.readouterr().err
    assert warning.startswith(f"expertp: warning: {words}") if words else not warning


@pytest.mark.parametrize(
    ("program", "start"), [("torchtitan", "# The optimizer of a torchtitan"), ("automodel", "# Th")]
)
def test_an_export_has_the_names_of_the_program(capsys: pytest.CaptureFixture[str], program: str, start: str) -> None:
    text = planned(capsys, "gpt-oss-120b", "--export", program)
    assert text.startswith(start)
    assert {"torchtitan": "mlp2_weight_EDF", "automodel": "down_projs"}[program] in text


def test_a_directory_stands_for_its_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((CONFIGS / "gpt-oss-120b.json").read_text())
    base = str(CONFIGS / "gpt-oss-120b-base.json")
    assert main(["plan", "--hf", base, str(tmp_path), "hps.lr=0.01"]) == 0
    assert "117B parameters" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "jamba"}, "model_type 'jamba' is not supported: its state-space"),
        ({"model_type": "olmow"}, "model_type 'olmow' is not a known family; did you mean 'olmoe'?"),
        ({"model_type": None}, "model_type is missing; give a config.json of a model"),
        ({"hidden_size": "wide"}, "transformers rejects it"),
        ({"num_experts_per_tok": 8}, "kappa=n_act/n_exp=1/16 in the target but 1/32 in the base"),
        ({"head_dim": 32}, "head_dim of attention is 32 in the target but 64 in the base"),
        ({"num_attention_heads": 32}, "attention has Q=2048 at width 2880"),
    ],
)
def test_a_bad_configuration_gets_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    keys = {**json.loads((CONFIGS / "gpt-oss-120b.json").read_text()), **change}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    base = str(CONFIGS / "gpt-oss-120b-base.json")
    assert message in refusal(capsys, "--hf", base, str(tmp_path / "config.json"), "hps.lr=0.01")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "endless"])
def test_a_configuration_that_is_no_regular_file_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "config.json")
    assert "config.json: damaged (not a regular file); give a config.json" in refusal(
        capsys, "--hf", str(tmp_path), str(tmp_path), *HPS
    )


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100000])
def test_what_is_no_configuration_gets_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str
) -> None:
    (tmp_path / "config.json").write_text(content)
    message = refusal(capsys, *files("gpt-oss-120b")[:2], str(tmp_path), "hps.lr=0.01")
    assert "not JSON" in message or "model_type is missing" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*files("gpt-oss-120b"), "hps.lr=0.01", "--base", "x"), "--base does not go with --hf; leave it out"),
        ((*files("gpt-oss-120b"),), "hps.lr: is missing; give it a value"),
        ((*files("gpt-oss-120b"), "model.n_embd=3"), "'model.n_embd=3' is not an override"),
        (("--roles", "--base", "a", "--target", "b"), "--roles needs --hf BASE TARGET"),
        (("--roles-file", "x", "--base", "a", "--target", "b"), "--roles-file needs --hf BASE TARGET"),
        ((*files("gpt-oss-120b"), *HPS, "--roles-file", "missing.txt"), "missing.txt: No such file"),
        (("--hf", "missing.json", "missing.json", "hps.lr=1"), "missing.json: no such file; give a config.json or"),
    ],
)
def test_a_bad_argument_gets_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert message in refusal(capsys, *arguments)


def test_a_parameter_without_a_role_gets_one_line_and_a_text_to_fill_in(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phimoe = FAMILIES["phimoe"]
    known = tuple(row for row in phimoe.rows if row.pattern != "lm_head.bias")
    monkeypatch.setitem(cast(dict[str, Family], FAMILIES), "phimoe", replace(phimoe, rows=known))
    keys = {"model_type": "phimoe", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
    keys |= {"intermediate_size": 32, "num_hidden_layers": 2, "lm_head_bias": True}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    assert main(["plan", "--hf", str(tmp_path), str(tmp_path), "hps.lr=0.01"]) == 2
    shown = capsys.readouterr()
    assert "lm_head.bias: no role in family 'phimoe'; fill in the '?' of the roles text" in shown.err
    assert "lm_head.bias | ? | ?  # 32064" in shown.out
    assert "model.norm.weight | final_norm | N  # 64" in shown.out


@pytest.mark.parametrize("verb", ["plan", "planner"])
def test_a_model_of_transformers_without_rules_gets_one_line_and_a_text_to_fill_in(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    Path("config.json").write_text(json.dumps(keys))
    assert main([verb, "--hf", "config.json", "config.json", "hps.lr=0.01"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("expertp: model_type 'llama' is not a known family; fill in the '?' of the roles text")
    assert len(shown.err.splitlines()) == 1
    assert "model.layers.#.self_attn.q_proj.weight | ? | ? ?  # 64 x 64" in shown.out
    assert shown.out.startswith("gate: ?  # sum of a token's gates")
    assert "inv_freq" not in shown.out
    Path("roles.txt").write_text(shown.out)
    assert main(["plan", "--hf", "config.json", "config.json", "hps.lr=0.01", "--roles-file", "roles.txt"]) == 2
    assert "gate is not known yet" in capsys.readouterr().err
