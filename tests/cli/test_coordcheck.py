"""`expertp coordcheck` from the command line: output, files, a second call, and bad input."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from runs import VOCAB, write_tokens

Say = Callable[..., tuple[int, str, str]]
FILES = ["coordcheck.csv", "coordcheck.json", "coordcheck.png", "coordcheck.svg"]


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    base = {"n_embd": 32, "d_head": 16, "n_layer": 1, "n_exp": 4, "n_act": 1, "vocab_size": VOCAB, "context": 16}
    tree = {
        "name": "small",
        "base": base,
        "hps": {"lr": 0.01, "init_std": 0.05},
        "train": {"data": str(write_tokens(tmp_path / "data")), "steps": 20, "batch_tokens": 256},
        "axes": {"width": [32, 64]},
        "grids": {"log2_lr": [-6]},
        "seeds": [0, 1],
    }
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.mark.heavy
def test_a_check_prints_a_table_and_leaves_four_files(study_file: Path, tmp_path: Path, say: Say) -> None:
    out = tmp_path / "check"
    code, text, err = say("coordcheck", study_file, "--out", out, "--steps", 6, "--rules", "sp")
    assert code == 1
    assert "rules sp" in text
    assert re.search(r"^attn_q +\+0\.\d\d ±0\.\d\d .*FAIL\n +\(0\)! ", text, re.M), text
    assert re.search(r"^FAIL: \d+ of \d+ slopes are as expected$", text, re.M)
    assert re.search(r"run 4/4, width 2x, seed 1: loss \d\.\d+; about 0 s left", err), err
    assert sorted(path.name for path in out.iterdir() if path.name != ".lock") == FILES
    record = json.loads((out / "coordcheck.json").read_text())
    assert (record["rules"], record["steps"], record["verdict"], record["diverged"]) == ("sp", 6, "FAIL", [])
    slope = next(each for each in record["slopes"] if each["module"] == "attn_q" and each["check"] == "init")
    assert slope["slope"] == pytest.approx(0.5, abs=0.1)
    assert (slope["axis"], slope["low"], slope["high"], slope["verdict"]) == ("width", 0, 0, "FAIL")
    with (out / "coordcheck.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["rules", "axis", "scale", "seed", "step", "module", "quantity", "value"]
    assert {(row["scale"], row["seed"]) for row in rows} == {("1.0", "0"), ("1.0", "1"), ("2.0", "0"), ("2.0", "1")}


@pytest.mark.heavy
def test_a_second_call_trains_nothing_and_says_the_same(
    study_file: Path, tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("coordcheck", study_file, "--out", tmp_path / "check", "--steps", 3, "--json")
    first = say(*command)
    before = {name: (tmp_path / "check" / name).read_bytes() for name in FILES}
    monkeypatch.setattr("expertp.coordcheck.measuring.TrainingLoop", None)
    second = say(*command)
    assert first[:2] == second[:2]
    assert second[2] == ""
    assert json.loads(second[1])["study"] == "small"
    assert before == {name: (tmp_path / "check" / name).read_bytes() for name in FILES}


@pytest.mark.heavy
def test_a_diverged_run_is_a_line_with_its_step(study_file: Path, tmp_path: Path, say: Say) -> None:
    code, text, err = say("coordcheck", study_file, "--out", tmp_path / "check", "--steps", 6, "hps.lr=10000")
    assert code == 1
    assert re.search(r"^FAIL: width 2x, seed 0: the run diverged at step \d; lower hps.lr$", text, re.M), text
    assert "none (0)" in text
    assert re.search(r"seed 1: diverged at step \d", err)
    assert "Traceback" not in err


@pytest.mark.heavy
def test_a_router_without_init_has_no_slope_there(study_file: Path, tmp_path: Path, say: Say) -> None:
    _, text, _ = say("coordcheck", study_file, "--out", tmp_path / "check", "--steps", 3, "hps.gamma=.inf")
    assert re.search(r"^router +zero ", text, re.M), text


BAD = {
    "steps": (["--steps", "2"], "--steps 2 is too few to measure slopes of training; give 3 or more"),
    "rules": (["--rules", "xp"], "argument --rules: invalid choice: 'xp'"),
    "data": (["train.data=nowhere"], "/nowhere' does not exist; make one: expertp prepare"),
    "override": (["train.step=3"], "step: unknown key; did you mean 'steps'?"),
    "vocabulary": (["base.vocab_size=32"], "is too small"),
    "one size": (["axes={width: [32]}"], "axis 'width' has one size; a slope needs two or more"),
    "validation": (["base.context=8192", "train.batch_tokens=8192"], "the val split has 6000 tokens, too few"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_input_gets_one_line_and_leaves_nothing(
    study_file: Path, tmp_path: Path, say: Say, arguments: list[str], message: str
) -> None:
    code, out, err = say("coordcheck", study_file, "--out", tmp_path / "check", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "check").exists()


@pytest.mark.heavy
def test_numbers_of_another_check_are_not_overwritten(study_file: Path, tmp_path: Path, say: Say) -> None:
    out = tmp_path / "check"
    say("coordcheck", study_file, "--out", out, "--steps", 3)
    before = (out / "coordcheck.csv").read_bytes()
    code, _, err = say("coordcheck", study_file, "--out", out, "--steps", 4)
    assert code == 2
    assert "holds a coordinate check of another study, data, rule set or number of steps" in err
    assert (out / "coordcheck.csv").read_bytes() == before
    (out / "coordcheck.csv").write_bytes(before[: before[:-1].rindex(b"\n") + 1])  # without its last row
    code, _, err = say("coordcheck", study_file, "--out", out, "--steps", 3)
    assert (code, err.count("\n")) == (2, 1)
    assert "coordcheck.csv: damaged (it was changed after it was written); remove" in err
    (out / "coordcheck.json").write_text("nonsense")
    assert "coordcheck.json: damaged" in say("coordcheck", study_file, "--out", out, "--steps", 3)[2]
