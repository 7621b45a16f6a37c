"""Every example runs, is short, and prints what it promises."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def output_of(name):
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_at_most_60_lines_and_tested_here(path):
    assert len(path.read_text().splitlines()) <= 60
    assert path.name in Path(__file__).read_text()


def test_plan_in_five_lines():
    lines = output_of("plan_in_five_lines.py").splitlines()
    assert any(line.startswith("expert_down ") and "lr 0.002844" in line for line in lines)


def test_any_optimizer():
    losses = [float(line.split()[3]) for line in output_of("any_optimizer.py").splitlines()]
    assert losses[-1] < losses[0] - 0.1
