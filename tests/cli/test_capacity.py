"""`expertp capacity`: what it reads, what it prints, and the one line that bad input gets."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from expertp.cli.main import main

CONFIGS = Path(__file__).parents[2] / "configs"
HF = Path(__file__).parents[1] / "fixtures/hf"
RUN, TARGET = str(CONFIGS / "run.yaml"), str(CONFIGS / "target.yaml")


def estimated(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["capacity", *arguments, "--json"]) == code
    tree: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    return tree


def test_it_prints_memory_traffic_and_time(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["capacity", TARGET, "--devices", "64", "--device", "h100", "--tokens", "50B"]) == 0
    out = capsys.readouterr().out
    for part in ("weights", "gradients", "optimizer", "gathered weights", "activations", "all"):
        assert re.search(rf"^{part} +\d+\.\d\d +\d+\.\d\d$", out, re.M), part
    assert re.search(r"^all-gather +experts +64 +67.9 GB +66.9 GB +167 ms$", out, re.M)
    assert "at 35% of 989 TFLOP/s" in out
    assert re.search(r"^budget  50B tokens: \d+ to \d+ device-hours, 10 h", out, re.M)
    assert re.search(r"^fits: \d+\.\d\d GiB of the usable 72.00 GiB per device$", out, re.M)


def test_json_holds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    tree = estimated(capsys, TARGET, "--devices", "64", "parallel.experts=8", "parallel.replicas=2", "--tokens", "5e10")
    assert tree["layout"] == {"devices": 64, "replicas": 2, "experts": 8, "recompute": False}
    kinds = {each["kind"] for each in tree["transfers"]}
    assert kinds == {"all-gather", "reduce-scatter", "all-reduce", "all-to-all"}
    memory = tree["memory"]
    assert memory["total"] == memory["total_without_recomputation"] > memory["total_with_recomputation"]
    assert memory["state"] == memory["weights"] + memory["gradients"] + memory["optimizer"]
    seconds, hours = tree["seconds_per_step"], tree["device_hours"]
    assert hours["serial"] / hours["overlapped"] == pytest.approx(seconds["serial"] / seconds["overlapped"])
    assert tree["tokens"] == 50_000_000_000
    assert tree["fits"] is True


def test_a_run_has_its_own_batch_and_budget(capsys: pytest.CaptureFixture[str]) -> None:
    tree = estimated(capsys, RUN, "--devices", "4", "train.micro_batch=2", "parallel.replicas=2")
    assert tree["tokens"] == 300 * 4096
    assert tree["job"]["train"]["dtype"] == "float32"
    assert tree["layout"]["replicas"] == 2


def test_a_run_directory_and_a_plan_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["plan", "--base", str(CONFIGS / "base.yaml"), "--target", TARGET, "--json"]) == 0
    plan = tmp_path / "plan.json"
    plan.write_text(capsys.readouterr().out)
    of_plan, of_target = estimated(capsys, str(plan)), estimated(capsys, TARGET)
    assert of_plan == of_target
    from expertp.config import load_run

    (tmp_path / "run").mkdir()
    record = {"format": 1, "run": load_run(RUN).to_dict()}
    (tmp_path / "run/run.json").write_text(json.dumps(record))
    assert estimated(capsys, str(tmp_path / "run"), "--devices", "4") == estimated(capsys, RUN, "--devices", "4")


def test_what_does_not_fit_is_said_with_the_smallest_layout_that_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = tmp_path / "large.yaml"
    large.write_text("model: {n_embd: 4096, n_layer: 32, n_exp: 8, n_act: 2, alpha_ffn: 5.25, context: 4096}\n")
    assert main(["capacity", str(large), "--devices", "8"]) == 1
    out = capsys.readouterr().out
    found = re.search(
        r"^does not fit: .*; the smallest layout that does: (\d+) devices with (.*): [\d.]+ GiB$", out, re.M
    )
    assert found, out
    assert main(["capacity", str(large), "--devices", found[1], *found[2].split()]) == 0
    assert "\nfits: " in capsys.readouterr().out
    assert main(["capacity", str(large), "--devices", "8", "--fit"]) == 1
    assert "no layout on these devices fits; the smallest layout that does: " in capsys.readouterr().out
    assert main(["capacity", str(large), "--devices", "8", "train.batch_tokens=32768"]) == 1
    assert "none on more devices that can share the batch; give a larger train.batch_tokens" in capsys.readouterr().out


def test_fit_shows_the_fastest_layout_and_others(capsys: pytest.CaptureFixture[str]) -> None:
    tree = estimated(capsys, TARGET, "--devices", "64", "--fit")
    times = [each["seconds_per_step"] for each in tree["layouts_that_fit"]]
    assert times == sorted(times)
    assert len(times) > 10
    assert tree["seconds_per_step"]["serial"] == times[0]
    assert main(["capacity", TARGET, "--devices", "64", "--fit"]) == 0
    out = capsys.readouterr().out
    assert f"... and {len(times) - 8} more" in out


@pytest.mark.heavy
def test_the_plan_of_a_model_of_transformers_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That of DeepSeek-V3 is larger than any file of settings."""
    pytest.importorskip("transformers")
    models = [str(HF / f"{name}.json") for name in ("deepseek-v3-base", "deepseek-v3")]
    assert main(["plan", "--hf", *models, "hps.lr=0.01", "--json"]) == 0
    plan = tmp_path / "plan.json"
    plan.write_text(capsys.readouterr().out)
    assert plan.stat().st_size > 2**18
    layout = ("--device", "h800", "--devices", "512", "model.context=4096", "parallel.experts=256")
    trees = [estimated(capsys, file, *layout, "train.activation_checkpointing=true") for file in (str(plan), models[1])]
    for tree in trees:
        tree["job"].pop("model")
    assert trees[0] == trees[1]
    plan.write_text(plan.read_text().replace('"n_act": 8', '"n_act": "many"'))
    assert main(["capacity", str(plan)]) == 2
    assert "target.n_act" in (error := capsys.readouterr().err)
    assert "write it again with expertp plan --hf BASE TARGET --json" in error
    assert error.count("\n") == 1


@pytest.mark.heavy
def test_a_model_of_transformers_and_its_published_hours(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    arguments = ["--device", "h800", "--devices", "512", "--tokens", "14.8T", "--hours", "2.664M", "model.context=4096"]
    assert main(["capacity", str(HF / "deepseek-v3.json"), *arguments]) == 1  # activations are too large
    out = capsys.readouterr().out
    assert "671B parameters, 37.6B active" in out
    assert "2.66M device-hours for 14.8T tokens: 34.3% of the peak by 6 FLOPs per active weight, 43.9% with" in out
    assert "activations (estimate)" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.yaml"], "nothing.yaml: no such file; `expertp init` writes starter files"),
        ([str(CONFIGS / "study.yaml")], "is a study; `expertp sweep --dry-run` shows its cost"),
        ([str(CONFIGS / "theory.yaml")], "section 'model:' is missing; give a run, base or target file"),
        ([str(CONFIGS)], "has neither run.json nor config.json"),
        ([TARGET, "--device", "h10"], "unknown device 'h10'; did you mean 'h100'"),
        ([TARGET, "--devices", "0"], "argument --devices: 0 is not a positive integer"),
        ([TARGET, "--tokens", "many"], "argument --tokens: many is not a number of tokens, such as 3e9"),
        ([TARGET, "--efficiency", "2"], "argument --efficiency: 2 is not a share above 0"),
        ([TARGET, "--hours", "-1M"], "argument --hours:"),
        ([TARGET, "--hours", "5"], "device-hours need a token budget; give --tokens or train.steps"),
        ([TARGET, "--devices", "3"], "a step of 512 sequences in micro-batches of 1 cannot be shared by 3 devices"),
        ([TARGET, "parallel.experts=3"], "a replica of 8 devices cannot be divided by parallel.experts=3"),
        ([TARGET, "parallel.expert=3"], "unknown key; did you mean 'experts'?"),
        ([RUN, "parallel.experts=x"], "parallel.experts: must be a whole number, not 'x'"),
        ([TARGET, "train.dtype=float64"], "the table of devices has no speed in float64"),
        ([TARGET, "train.batch_tokens=1000"], "is not a multiple of model.context=1024; set 1024"),
    ],
)
def test_bad_input_gets_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1
