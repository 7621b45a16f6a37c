"""`expertp plan`: its output, and the one line that each kind of bad input gets."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from expertp.cli.main import main

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = ("--base", str(CONFIGS / "base.yaml"), "--target", str(CONFIGS / "target.yaml"))

GROUPS = [
    "embedding",
    "unembedding",
    "norm",
    "final_norm",
    "attn_qk",
    "attn_v",
    "attn_o",
    "linear_bias",
    "router",
    "expert_up",
    "expert_down",
    "expert_bias",
    "ffn_up",
    "ffn_up_bias",
    "ffn_down",
]
SETTINGS = ["init_std", "lr", "weight_decay", "adam_eps"]
SCHEMA = {
    "multipliers": ["width", "depth", "experts", "alpha"],
    "groups": GROUPS,
    "forward": ["residual", "logits", "attention_scale", "moe_output"],
    "counts": [
        "total",
        "active",
        "non_embedding_total",
        "non_embedding_active",
        "paper_total",
        "paper_active",
    ],
}
BASE_TEXT = (CONFIGS / "base.yaml").read_text(encoding="utf-8")
TARGET_TEXT = (CONFIGS / "target.yaml").read_text(encoding="utf-8")


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    """Return the JSON of a plan, refusing the tokens NaN and Infinity, which are not JSON."""

    def refuse(token: str) -> NoReturn:
        raise AssertionError(f"{token} is not JSON")

    assert main(["plan", *FILES, "--json", *arguments]) == 0
    tree: dict[str, dict[str, object]] = json.loads(capsys.readouterr().out, parse_constant=refuse)
    return tree


@pytest.mark.parametrize("arguments", [(), ("hps.gamma=.inf",), ("hps.rules=sp", "hps.weight_decay=0.1")])
def test_json_has_exactly_the_documented_keys(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    tree = planned(capsys, *arguments)
    assert list(tree) == ["rules", "eps_rule", "base", "target", "multipliers", "groups", "forward", "counts"]
    assert {name: list(tree[name]) for name in SCHEMA} == SCHEMA
    assert all(list(group) == SETTINGS for group in tree["groups"].values())


def test_json_has_the_numbers_of_the_papers_largest_model(capsys: pytest.CaptureFixture[str]) -> None:
    tree = planned(capsys, "hps.lr=1", "hps.init_std=1", "hps.constants=ones")
    assert (tree["rules"], tree["eps_rule"]) == ("expertp", "consistent")
    assert tree["multipliers"] == {"width": 5.625, "depth": 1.0, "experts": 4.0, "alpha": 1.0}
    up = tree["groups"]["expert_up"]
    assert (up["lr"], up["init_std"]) == pytest.approx((1 / 5.625, 5.625**-0.5))
    assert up["adam_eps"] == pytest.approx(1e-12 / 5.625 / 4)
    assert tree["groups"]["ffn_up"] == dict.fromkeys(SETTINGS)
    assert tree["forward"] == pytest.approx(
        {"residual": 1, "logits": 1 / 5.625, "attention_scale": 1 / 64, "moe_output": 1 / 4}
    )
    assert tree["target"]["n_embd"] == 2880
    # 8 layers of attention and 16 (4 active) experts, and both tables
    tables = 2880 * (50304 + 1024)
    assert tree["counts"]["paper_total"] == 8 * 2880**2 * (4 + 2 * 16) + tables
    assert tree["counts"]["paper_active"] == 8 * 2880**2 * (4 + 2 * 4) + tables


def test_the_table_of_the_example_files(
    capsys: pytest.CaptureFixture[str], matches_golden: Callable[[str, str], None]
) -> None:
    assert main(["plan", *FILES]) == 0
    matches_golden("plan.txt", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("hps.eps_rule=paper", "hps.residual=absolute"), ["eps paper, residual absolute", "block outputs x 0.125"]),
        (("hps.weight_decay=0.1", "hps.decay=tau", "hps.tuned_steps=10", "--steps", "40"), ["decay tau", "x0.25"]),
        (("model.n_embd=1024",), ["m_N 2, m_L 1, m_E 4, m_a 1", "Tab. 1-2, Rule 1"]),
    ],
)
def test_the_table_says_which_options_it_used(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: list[str]
) -> None:
    assert main(["plan", *FILES, *arguments]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in words), out


def test_a_dense_plan_has_no_word_of_experts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    base = tmp_path / "dense.yaml"
    base.write_text("model: {n_embd: 64, n_layer: 2, ffn: dense}\nhps: {lr: 0.1}\n", encoding="utf-8")
    target = tmp_path / "target.yaml"
    target.write_text("model: {n_embd: 128, n_layer: 2, ffn: dense}\n", encoding="utf-8")
    assert main(["plan", "--base", str(base), "--target", str(target)]) == 0
    out = capsys.readouterr().out
    assert "ffn_down" in out
    assert not [word for word in ("active experts", "router", "expert bias", "expert_up") if word in out]


def test_overrides_may_stand_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["plan", "model.n_layer=16", *FILES[:2], "hps.lr=1", *FILES[2:], "--json", "hps.bias_lr=0.5"])
    tree = json.loads(capsys.readouterr().out)
    assert code == 0
    assert tree["target"]["n_layer"] == 16
    assert (tree["groups"]["embedding"]["lr"], tree["groups"]["expert_bias"]["lr"]) == (1.0, 0.5)


@pytest.mark.parametrize(("steps", "words"), [("40", "40 steps in the target but hps.tuned_steps=10"), ("10", "")])
def test_another_number_of_steps_than_the_base_was_tuned_with_is_a_warning(
    capsys: pytest.CaptureFixture[str], steps: str, words: str
) -> None:
    assert main(["plan", *FILES, "hps.tuned_steps=10", "--steps", steps, "--json"]) == 0
    warned = capsys.readouterr().err
    assert warned.count("\n") == bool(words)
    assert words in warned


@pytest.mark.parametrize("output", [(), ("--json",)], ids=["table", "json"])
def test_a_permitted_change_of_sparsity_is_a_warning_beside_the_output(
    capsys: pytest.CaptureFixture[str], output: tuple[str, ...]
) -> None:
    assert main(["plan", *FILES, "model.n_act=2", "--allow-kappa-change", *output]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("expertp: warning: kappa=1/8 in the target but 1/4 in the base")
    assert captured.err.count("\n") == 1
    assert "warning" not in captured.out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a plan that must be refused: exit code 2, one line on stderr, nothing on stdout."""
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("\n")
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("expertp: ")
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.n_embed=512", "'model.n_embed=512': n_embed: unknown key; did you mean 'n_embd'?"),
        ("hps.learning=1", "learning: unknown key; choose one of lr, init_std"),
        ("model.n_act=32", "target.yaml: model: n_act=32 is more than n_exp=16"),
        ("model.n_embd=1000", "n_embd=1000 is not a multiple of d_head=64; set n_embd=1024 or another d_head"),
        ("model.alpha_ffn=0.3001", "alpha_ffn*n_embd=864.288 is not an integer >= 1; set alpha_ffn=864/2880"),
        ("model.alpha_ffn=.inf", "model.alpha_ffn: input should be a finite number, not inf"),
        ("model.alpha_ffn=1e+300", "model.alpha_ffn: input should be less than 1000000, not"),
        ("model.n_act=2", "kappa=n_act/n_exp=1/8 in the target but 1/4 in the base"),
        ("model.d_head=32", "d_head=32 in the target but 64 in the base"),
        ("model.gate=softmax", "gate=softmax in the target but sigmoid in the base"),
        ("model.gate=tanh", "model.gate: input should be 'sigmoid' or 'softmax', not 'tanh'"),
        ("model.n_layer=deep", "model.n_layer: must be a whole number"),
        ("model.n_layer=", "model.n_layer: must be a whole number, not null"),
        ("model.n_layer=2.5", "model.n_layer: must be a whole number"),
        ("model.tied_embeddings=7", "model.tied_embeddings: must be true or false"),
        ("hps.lr=-1", "base.yaml: hps.lr: input should be greater than 0, not -1"),
        ("hps.lr=1/0", "hps.lr: must be a number"),
        ("hps.lr=.inf", "hps.lr: input should be a finite number, not inf"),
        ("hps.betas=[0.9]", "hps.betas.1: is missing; give it a value"),
        ("hps.gamma=0.25", "hps.gamma: input should be greater than or equal to 0.5, not 0.25"),
        (
            "hps.rules=expert",
            "hps.rules: input should be 'expertp', 'sp', 'mup', 'completep', 'fan_in_down', 'no_depth', 'no_mean', "
            "'no_alpha', 'fan_in_stack' or 'native'",
        ),
        ("hps.decay=tau", "hps.tuned_steps is missing"),
        ("hps.constants=most", "hps.constants: input should be 'ones' or 'paper', not 'most'"),
        ("hps.constants={router_lr: high}", "hps.constants.router_lr: must be a number"),
        ("hps.constants={router_lr: -1}", "hps.constants.router_lr: must be positive and finite, not -1"),
        ("hps.constants={rooter_lr: 1}", "hps.constants.rooter_lr: unknown constant; did you mean 'router_lr'?"),
        ("hps.constants={attn_qkv_lr: 1, attn_v_lr: 1}", "lr of group 'attn_v' is set twice"),
        ("hps.constants.router_lr=1", "hps.constants is the preset 'paper', which has no keys"),
        ("n_embd=512", "'n_embd=512' is not an override; did you mean model.n_embd=512?"),
        ("train.steps=5", "'train.steps=5' is not an override; write model.KEY=VALUE, hps.KEY=VALUE"),
        ("model.n_embd", "'model.n_embd' is not an override; write model.KEY=VALUE, hps.KEY=VALUE"),
        ("model=5", "'model=5' is not an override; write model.KEY=VALUE"),
        ("model.n_embd=[", "'model.n_embd=[': the value is not valid YAML"),
        ("model.n_embd=2024-13-45", "model.n_embd: must be a whole number, not '2024-13-45'"),
        ("model.n_embd=1:30", "model.n_embd: must be a whole number, not '1:30'"),
        ("model.n_layer=true", "n_layer=true is a boolean"),
        ("model.n_embd=[\n", "'model.n_embd=[\\n': the value is not valid YAML"),
        ("hps.lr=!!python/object/apply:os.getcwd []", "the value is not valid YAML"),
        ("--steps=many", "argument --steps: invalid int value: 'many' (see 'expertp plan --help')"),
        ("--steps=0", "steps=0 is not positive"),
        ("--bse=x", "unrecognized arguments: --bse=x (see 'expertp plan --help')"),
        ("--allow-kappa", "unrecognized arguments: --allow-kappa (see 'expertp plan --help')"),
    ],
)
def test_a_bad_argument_gets_one_line(capsys: pytest.CaptureFixture[str], override: str, message: str) -> None:
    assert message in refusal(capsys, *FILES, override)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BASE_TEXT.replace("n_embd", "n_embed"), "bad.yaml: model.n_embed: unknown key; did you mean 'n_embd'?"),
        (BASE_TEXT.replace("hps:", "hpss:"), "bad.yaml: hpss: unknown section; did you mean 'hps'?"),
        (BASE_TEXT.partition("hps:")[0], "section 'hps:' is missing; a base file has"),
        ("hps:" + BASE_TEXT.partition("hps:")[2], "section 'model:' is missing; a base file has"),
        (BASE_TEXT.replace("512", "wide"), "model.n_embd: must be a whole number"),
        (BASE_TEXT.replace("lr: 0.016", "lr: []"), "hps.lr: must be a number, not []"),
        (BASE_TEXT.replace("  lr: 0.016", "  # none"), "hps.lr: is missing; give it a value"),
        (BASE_TEXT.replace("  n_exp: 4", "  # none"), "n_exp is missing; give n_exp and n_act, or set ffn=dense"),
        ("model: 3\nhps: {lr: 1}\n", "bad.yaml: model: expected keys and values, found int"),
        ("model:\nhps: {lr: 1}\n", "bad.yaml: model: expected keys and values, found NoneType"),
        ("- model\n- hps\n", "bad.yaml: expected sections model, hps, found list"),
        ("", "bad.yaml: is empty; give the sections model, hps"),
        ("model: {n_embd: [\n", "bad.yaml, line 2: not YAML: "),
        ("model: \t3: 4\n", "not YAML: "),
        ("model: 'a\0b'\n", "not YAML: unacceptable character"),
        ("model: 2024-13-45\nhps: {lr: 1}\n", "bad.yaml: model: expected keys and values, found str"),
        ("hps:\n  lr: 1\n  lr: 2\n", "bad.yaml, line 3: not YAML: key 'lr' appears twice"),
        ("[" * 5000, "bad.yaml: not YAML: "),
    ],
)
def test_a_bad_base_file_gets_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    assert message in refusal(capsys, "--base", str(path), *FILES[2:])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BASE_TEXT, "section 'hps:' is not allowed in a target"),
        ("{}\n", "section 'model:' is missing"),
        (TARGET_TEXT.replace("alpha_ffn", "alpha"), "model.alpha: unknown key; did you mean 'alpha_ffn'?"),
    ],
)
def test_a_bad_target_file_gets_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    assert message in refusal(capsys, *FILES[:2], "--target", str(path))


def test_a_file_that_is_not_text_gets_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes("model: é".encode("latin-1"))
    assert f"{path}: not UTF-8 at byte 7" in refusal(capsys, "--base", str(path), *FILES[2:])


def test_a_file_that_asks_to_run_code_is_refused_and_runs_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    evidence, path = tmp_path / "evidence", tmp_path / "bad.yaml"
    path.write_text(f"model: !!python/object/apply:os.mkdir ['{evidence}']\n", encoding="utf-8")
    assert "tag '!!python/object/apply:os.mkdir' is not supported" in refusal(capsys, "--base", str(path), *FILES[2:])
    assert not evidence.exists()


def test_a_missing_file_or_a_directory_gets_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    assert f"{missing}: no such file; `expertp init` writes starter files" in refusal(
        capsys, "--base", str(missing), *FILES[2:]
    )
    assert f"{tmp_path}: is a directory; give a YAML file" in refusal(capsys, "--base", str(tmp_path), *FILES[2:])


@pytest.mark.parametrize("arguments", [(), FILES[:2], FILES[2:]])
def test_both_files_are_needed(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    missing = [flag for flag in ("--base", "--target") if flag not in arguments]
    message = f"the following arguments are required: {', '.join(missing)} (see 'expertp plan --help')"
    assert message in refusal(capsys, *arguments)


def test_a_zero_router_is_planned_as_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(capsys, "hps.gamma=.inf")["groups"]["router"]["init_std"] == 0.0
    assert math.isclose(planned(capsys, "hps.gamma=1/2")["groups"]["router"]["init_std"], 0.02 * 5.625**-0.5)
