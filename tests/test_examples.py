"""Every example runs, is short, and prints what it promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from expertp.study.cells import expand
from expertp.study.load import load_study
from expertp.training.build import check_model

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def output_of(name, *arguments):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_at_most_60_lines_and_tested_here(path):
    assert len(path.read_text().splitlines()) <= 60
    assert path.name in Path(__file__).read_text()


def test_plan_in_five_lines():
    lines = output_of("plan_in_five_lines.py").splitlines()
    assert any(line.startswith("expert_down ") and "lr 0.002844" in line for line in lines)


@pytest.mark.heavy
def test_any_optimizer():
    losses = [float(line.split()[3]) for line in output_of("any_optimizer.py").splitlines()]
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.heavy
def test_study_in_ten_lines(tmp_path):
    small = ["train.steps=2", "train.eval_every=2", "train.warmup_steps=0", "train.batch_tokens=128"]
    small += ["train.eval_tokens=128", "seeds=[0, 1]", "grids.log2_lr=[-8, -7]", "grids.log2_init_std=null"]
    lines = output_of("study_in_ten_lines.py", str(tmp_path), *small).splitlines()
    assert lines[-2].startswith("width, log2_lr: UNDECIDED")
    assert Path(lines[-1]) == tmp_path / "study" / "report.html"


@pytest.mark.heavy
def test_own_moe():
    assert float(output_of("own_moe.py").split()[1]) < 1


@pytest.mark.heavy
def test_hf_plain_loop(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[hf]'")
    losses = [float(line.split()[3]) for line in output_of("hf_plain_loop.py", str(tmp_path)).splitlines()]
    assert losses[-1] < losses[0] - 1
    assert (tmp_path / "expertp.json").exists()


def test_hf_study_has_the_three_arms_and_can_be_planned():
    pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[hf]'")
    study = load_study(EXAMPLES / "hf_study.yaml")
    runs = {(cell.size.model, cell.arm): cell.run for cell in expand(study)}
    assert {arm.name for _, arm in runs} == {"expertp", "native", "sp"}
    for run in runs.values():
        check_model(run, "cpu")


@pytest.mark.heavy
def test_hf_trainer_resumes(tmp_path):
    pytest.importorskip("accelerate", reason="accelerate is not installed: pip install -e '.[hf]'")
    """Its second run logs step 10 only, after the history of the first one; from scratch it would log step 5 again."""
    first, second = (output_of("hf_trainer.py", str(tmp_path), steps) for steps in ("5", "10"))
    assert (first.count("'loss'"), second.count("'loss'")) == (1, 1)
    [before], [*kept, last] = (
        json.loads((tmp_path / f"checkpoint-{step}" / "trainer_state.json").read_text())["log_history"]
        for step in (5, 10)
    )
    assert (kept, last["step"]) == ([before], 10)
    assert last["loss"] < before["loss"]
    assert (tmp_path / "checkpoint-10" / "expertp.json").exists()


@pytest.mark.heavy
def test_theory_in_ten_lines():
    rows = [line.split() for line in output_of("theory_in_ten_lines.py").splitlines() if line.split()[0].isdigit()]
    limit, small, large = map(float, rows[-1][1:])
    assert abs(large - limit) < abs(small - limit)
