"""`expertp sweep` and `status` from the command line."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from runs import study_tree, write_tokens

from expertp.cli.progress import Reporter
from expertp.cli.sweep import SweepView
from expertp.study.spec import ChoiceSpec
from expertp.study.store import read_study

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study_tree(write_tokens(tmp_path / "data"))))
    return path


@pytest.mark.heavy
def test_a_dry_run_tells_the_cost_and_trains_nothing(study_file: Path, tmp_path: Path, say: Say) -> None:
    code, out, _ = say("sweep", study_file, "--dry-run", "--workers", 2)
    assert code == 0
    assert out.startswith("test: 12 runs of 3 steps, 384 tokens each\n")
    assert "N64 L2 E4A2 a1" in out
    assert "4.61k tokens" in out
    assert "FLOPs" in out
    assert "MiB of disk" in out
    assert "with 2 workers on this machine, from 3 timed steps of each model" in out
    say("sweep", study_file, "--dry-run", "--out", tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_a_dry_run_prints_the_cost_before_it_opens_the_data(study_file: Path, say: Say) -> None:
    code, out, err = say("sweep", study_file, "--dry-run", "--workers", "2", "train.data=nowhere")
    assert (code, err.count("\n")) == (2, 1)
    assert "total: 4.61k tokens, 1.3e+09 FLOPs, 5 MiB of disk" in out


@pytest.mark.heavy
def test_a_dry_run_at_the_scale_of_the_paper_takes_seconds(tmp_path: Path) -> None:
    """The base of the paper (n_embd 512, 8 layers, 50304 ids, context 1024, batches of half a million tokens)."""
    from expertp.paper.profile import load_profile
    from expertp.study.spec import AxisSpec

    (tmp_path / "data").mkdir()
    for name in ("train", "val"):
        (np.arange(1_000_000) % 50_000).astype("<u2").tofile(tmp_path / f"data/{name}.bin")
    study = load_profile("paper").study("transfer-quarter", tmp_path / "data")
    narrow = study.replace(axes={"width": AxisSpec(sizes=(512, 1024))})
    (tmp_path / "study.yaml").write_text(json.dumps(narrow.to_dict()))
    command = [sys.executable, "-m", "expertp.cli.main", "sweep", str(tmp_path / "study.yaml"), "--dry-run"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 10  # seconds of processor time, whatever else the machine does
    assert "N512 L8 E4A1 a1   51.5M       38.9M" in finished.stdout
    assert "estimated from FLOPs and the speed of matrix products, no step was timed" in finished.stdout


@pytest.mark.heavy
@pytest.mark.usefixtures("in_process")
def test_a_study_can_be_resumed_from_its_own_directory_and_from_anywhere(
    study_file: Path, tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    from expertp.study.load import load_study
    from expertp.study.store import read_study

    say("sweep", study_file, "--out", tmp_path / "a study", "--workers", 1, "seeds=[0, 1, 2]")
    swept = tmp_path / "a study/study.json"
    assert load_study(swept) == read_study(tmp_path / "a study").study
    assert load_study(swept).seeds == (0, 1, 2)
    text = swept.read_text()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, out, err = say("sweep", swept, "--out", tmp_path / "a study", "--workers", 1)
    assert (code, err) == (0, "")  # nothing is trained
    assert f"results: {tmp_path}/a study/results.csv" in out
    assert swept.read_text() == text


@pytest.mark.heavy
@pytest.mark.usefixtures("in_process")
def test_a_sweep_ends_with_results_and_verdicts_and_a_second_one_trains_nothing(
    study_file: Path, tmp_path: Path, say: Say
) -> None:
    code, out, err = say("sweep", study_file, "--out", tmp_path / "study", "--workers", 1)
    assert code == 0
    assert "12 of 12 runs to train" in err
    assert out.startswith("12 runs: 12 finished\n")
    assert "UNDECIDED" in out  # two learning rates have no optimum between them
    before = (tmp_path / "study/results.csv").read_bytes()
    code, out, err = say("sweep", study_file, "--out", tmp_path / "study", "--workers", 1)
    assert (code, err) == (0, "")
    assert (tmp_path / "study/results.csv").read_bytes() == before
    assert "all 12 runs are there" in say("sweep", study_file, "--out", tmp_path / "study", "--dry-run")[1]
    assert say("sweep", study_file, "--out", tmp_path / "study", "--dry-run", "grids.log2_lr=[-8, -6, -5]")[
        1
    ].startswith("test: 4 runs of 3 steps")


@pytest.mark.heavy
@pytest.mark.usefixtures("in_process")
def test_status_tells_how_a_study_stands(study_file: Path, tmp_path: Path, say: Say) -> None:
    say("sweep", study_file, "--out", tmp_path / "study", "--workers", 1)
    code, out, _ = say("status", tmp_path / "study")
    assert code == 0
    assert out.startswith("test: 12 of 12 runs have ended (12 finished)\n")
    tree = json.loads(say("status", tmp_path / "study", "--json")[1])
    assert tree["runs"] == {
        "total": 12, "finished": 12, "diverged": 0, "stopped": 0, "failed": 0, "damaged": 0, "running": 0,
        "unfinished": 0, "missing": 0,
    }  # fmt: skip
    assert (tree["share_done"], tree["seconds_left"], tree["running"], tree["failed"]) == (1.0, 0, [], [])
    assert [model["n_embd"] for model in tree["models"]] == [32, 64]
    assert set(tree["models"][0]) >= {"arm", "total", "finished", "diverged", "best_log2_lr", "loss"}


@pytest.mark.heavy
@pytest.mark.usefixtures("in_process")
def test_status_lists_failures_and_exits_with_1(study_file: Path, tmp_path: Path, say: Say) -> None:
    from expertp.study.store import read_study

    say("sweep", study_file, "--out", tmp_path / "study", "--workers", 1)
    directory = read_study(tmp_path / "study")
    first = next(iter(directory.runs))
    (directory.place(first) / "summary.json").unlink()
    for _ in range(2):  # once is forgiven
        directory.note_failure(first, "OSError: the disk is full")
    code, out, _ = say("status", tmp_path / "study")
    assert code == 1
    assert f"{directory.place(first).name}  OSError: the disk is full" in out


BAD = {
    "unknown axis": (["axes={widht: [32, 64]}"], "axes.widht"),
    "empty grid": (["grids.log2_lr=[]"], "grids.log2_lr: is empty; give values"),
    "kappa": (["axes={fixed_topk: [4, 8]}"], "set allow_kappa_change: true"),
    "one seed": (["seeds=[0]"], "add seeds, or set verdict: null"),
    "negative lr": (["hps.lr=-1"], "hps.lr: input should be greater than 0, not -1"),
    "no workers": (["--workers", "0"], "--workers: 0 is not a positive integer"),
    "rules of another name": (
        ["arms={sp: {axes: [width], hps: {rules: mup}}}"],
        "arms.sp.hps: rules=mup in an arm named after other rules; rename it",
    ),
    "gamma": (["hps.gamma=2000"], "2000 is above 16"),
    "no data": (["train.data=nowhere"], "nowhere"),
    "key without its section": (["steps=5"], "'steps=5' is not an override; did you mean train.steps=5?"),
    "axis without its section": (["width=[32, 64]"], "did you mean axes.width=[32, 64]?"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_a_bad_study_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, study_file: Path, tmp_path: Path, say: Say
) -> None:
    code, out, err = say("sweep", study_file, "--out", tmp_path / "study", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not (tmp_path / "study").exists()


@pytest.mark.heavy
@pytest.mark.usefixtures("in_process")
def test_a_directory_of_another_study_is_refused_and_left_as_it_is(study_file: Path, tmp_path: Path, say: Say) -> None:
    say("sweep", study_file, "--out", tmp_path / "study", "--workers", 1)
    before = sorted(path.stat().st_mtime_ns for path in (tmp_path / "study").rglob("*"))
    code, _, err = say("sweep", study_file, "--out", tmp_path / "study", "train.steps=4")
    assert code == 2
    assert "holds another study (train.steps=3 there, 4 here); choose another --out" in err
    assert sorted(path.stat().st_mtime_ns for path in (tmp_path / "study").rglob("*")) == before
    assert say("sweep", study_file)[0] == 2
    assert say("status", tmp_path / "nowhere")[0] == 2


def test_cells_that_would_decide_a_verdict_are_shown_with_their_cost(capsys: pytest.CaptureFixture[str]) -> None:
    from expertp.search.design import Proposal

    wider = ChoiceSpec(axis="width", hp="log2_lr", values=(-6, -5), seeds=(0, 1), why="the minimum may lie beyond")
    more = ChoiceSpec(axis="depth", hp="log2_lr", values=(-5.5,), seeds=(0, 1, 2))
    with Reporter("sweep", total=1.0) as reporter:
        view = SweepView(reporter, workers=2)
        view.show_proposal(Proposal(wider, True, runs=12, flops=1e12, seconds=24.0), is_chosen=True)
        view.show_proposal(Proposal(more, False, runs=1, flops=1e12, seconds=1e4), is_chosen=False)
    lines = capsys.readouterr().err.splitlines()
    assert "next: width, log2_lr: -6, -5 with 2 seeds (12 more runs, about 0.2 min)" in lines[0]
    assert "because the minimum may lie beyond" in lines[1]
    assert "over budget: depth, log2_lr: -5.5 with 3 seeds (1 more run, about 83.3 min)" in lines[2]


@pytest.mark.heavy
@pytest.mark.usefixtures("in_process")
def test_an_adaptive_sweep_trains_few_cells_and_goes_on(study_file: Path, tmp_path: Path, say: Say) -> None:
    """With little time it stops at the first cells; the same command continues, and a plain sweep trains the rest."""
    out = tmp_path / "study"
    dry = say("sweep", study_file, "--until", "decided", "--dry-run")[1]
    code, text, _ = say("sweep", study_file, "--out", out, "--until", "decided", "--minutes", "0.001", "--workers", 1)
    assert code == 0
    assert "some runs have not ended" in text
    first = read_study(out).study.chosen
    assert [(each.hp, each.seeds, each.looks) for each in first] == [("log2_lr", (0, 1), 1)]
    assert f"{len(read_study(out).runs)} runs of 3 steps" in dry
    code, text, _ = say("status", out)
    assert "cells that it would train next:\n  width, log2_lr:" in text
    assert "more runs" in text
    assert text.rstrip().endswith("because first cells\n\nno worker is active")
    code, text, _ = say("sweep", study_file, "--out", out, "--until", "decided", "--minutes", "0.2", "--workers", 1)
    assert code == 0
    assert "UNDECIDED" in text
    assert {each.status for each in read_study(out).results()} >= {"finished"}
    assert say("sweep", study_file, "--out", out, "--workers", 1)[0] == 0
    full = read_study(out)
    assert full.study.chosen is None
    assert [each.looks for each in full.study.refinements] == [2]
    dry = say("sweep", study_file, "--out", out, "--until", "decided", "--dry-run")[1]
    assert f"all {len(full.runs)} runs are there" in dry  # it begins with all of them


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--minutes", "3"), "it goes with --until decided"),
        (("--until", "decided", "--minutes", "-1"), "give minutes above 0"),
        (("--until", "decided", "verdict=null"), "--until decided needs verdicts"),
    ],
)
def test_options_of_an_adaptive_sweep_are_checked(
    options: tuple[str, ...], words: str, study_file: Path, say: Say
) -> None:
    code, _, err = say("sweep", study_file, *options, "--dry-run")
    assert code == 2
    assert words in err


def test_a_dry_run_on_slurm_prints_cost_and_script_and_writes_nothing(
    study_file: Path, tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # a dry run asks nobody
    out = tmp_path / "study"
    options = ("--executor", "slurm", "--workers", 3, "--sbatch=--partition=a100 --time=1:00:00")
    code, text, err = say("sweep", study_file, "--out", out, *options, "--dry-run", "train.device=cuda")
    assert (code, err) == (0, "")
    assert text.startswith("test: 12 runs of 3 steps, 384 tokens each\n")
    assert "no step was timed here" in text
    assert f"--array=0-2 --output={out}/slurm/%A_%a.log --partition=a100 --time=1:00:00 {out}/slurm/job.sbatch" in text
    assert f"-m expertp.study.executors.task {out} " in text
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--sbatch=--time=1", "--dry-run"), "--sbatch goes with --executor slurm"),
        (("--address", "x:1", "--dry-run"), "--address goes with --executor ray"),
        (("--executor", "slurm", "--dry-run"), "--out DIR is missing"),
        (("--executor", "slurm", "--sbatch=--array=1", "--out", "x"), "'--array=1' is set by expertp"),
        (("--executor", "slurm", "--out", "x"), "sbatch is not installed here"),
    ],
)
def test_options_of_executors_are_checked(
    options: tuple[str, ...], words: str, study_file: Path, say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    code, out, err = say("sweep", study_file, *options)
    assert (code, out) == (2, "")
    assert words in err.splitlines()[-1]


@pytest.mark.heavy
def test_sigterm_saves_and_the_same_command_goes_on(study_file: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "expertp.cli.main", "sweep", str(study_file), "--out", str(tmp_path / "study")]
    command += ["--workers", "1", "train.steps=3000", "train.eval_every=0", "verdict=null"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("study/runs/*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "stopped and saved; run the same command to continue" in out
    assert list(tmp_path.glob("study/runs/*/checkpoints/step-*"))
