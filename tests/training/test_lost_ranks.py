"""Ranks that are killed, at random times: nothing is lost. test_parallel.py has the quick version."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import yaml
from ranks import records
from runs import run_tree, write_tokens

from expertp.config import build
from expertp.spec import RunSpec
from expertp.training.checkpoints import resume
from expertp.training.store import read_run
from expertp.training.train import train

KILLS = 20
# SIGKILL to a rank, SIGTERM to a rank, SIGKILL to the launcher.
KINDS = ("rank", "term", "launcher")
TREE = {"steps": 1500, "checkpoint_steps": 3, "micro_batch": 4, "eval_every": 50}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("tokens"))


def assert_equal(first: Path, second: Path) -> None:
    here, there = (resume(read_run(out)).tensors.whole() for out in (first, second))
    assert here.keys() == there.keys()
    assert all(torch.equal(value, there[name]) for name, value in here.items())
    assert records(first) == records(second)


def newest(out: Path) -> int:
    return max((int(folder.name[5:]) for folder in (out / "checkpoints").glob("step-*")), default=0)


def children(pid: int) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def wait_until(condition: object, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_random_kills(data: Path, tmp_path: Path) -> None:
    """One rank gets SIGKILL or SIGTERM, or the launcher is killed; then the run continues, by -m or --no-python."""
    run, out, chance = run_tree(data, train=TREE), tmp_path / "run", random.Random(0)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = ["train", str(tmp_path / "run.yaml"), "--out", str(out)]
    kinds = Counter[str]()
    commands = [[*launcher, *how, *arguments] for how in (("-m", "expertp"), ("--no-python", "expertp"))]
    for number in range(KILLS):
        before = newest(out)
        process = subprocess.Popen(commands[number % 2], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if number % 5:  # every fifth is killed at any time of its start
            wait_until(lambda before=before: newest(out) > before)
            time.sleep(chance.uniform(0, 0.5))
        else:
            time.sleep(chance.uniform(1, 8))
        ranks = children(process.pid)
        how = chance.choice(KINDS)
        target = process.pid if how == "launcher" or not ranks else chance.choice(ranks)
        kinds["start" if not ranks else how] += 1  # before it has ranks, the launcher gets every signal
        os.kill(target, signal.SIGTERM if how == "term" else signal.SIGKILL)
        process.wait(timeout=120)
        for rank in ranks if how == "launcher" else ():  # they would train on
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
        wait_until(lambda ranks=ranks: not any(Path(f"/proc/{rank}").exists() for rank in ranks))
        assert newest(out) >= before, (number, how)
        if how == "term" and number % 5:
            assert read_run(out).summary().status == "stopped"
            assert read_run(out).summary().step == newest(out), "saved at the step at which all ranks stopped"
    print(f"{kinds.total()} kills: {dict(kinds)}")
    assert kinds.keys() >= set(KINDS), "each kind of kill took place"
    assert newest(out) < TREE["steps"], "all kills must hit the run"
    subprocess.run(commands[1], check=True, capture_output=True, timeout=500)
    train(build(RunSpec, run, "run"), tmp_path / "whole")
    assert_equal(out, tmp_path / "whole")
    assert read_run(out).summary().world_size == 2
