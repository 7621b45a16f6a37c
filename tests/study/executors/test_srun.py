"""srun starts the ranks of one run, on a real SLURM with two nodes on this machine."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from clusters import Slurm
from ranks import records
from runs import run_tree

from expertp.config import build
from expertp.spec import RunSpec
from expertp.training.store import read_run
from expertp.training.train import train


@pytest.mark.slow
def test_srun_starts_the_ranks_of_one_run(slurm: Slurm, data: Path, tmp_path: Path) -> None:
    """Two nodes: the bits of one process, one line for bad input and true exit codes, a signal stops all ranks."""
    # The names of the nodes are not those of machines, so the ranks cannot find the first node by its name.
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}

    def srun(name: str, **settings: object) -> subprocess.Popen[str]:
        run = run_tree(data, train={"micro_batch": 4, **settings})
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(run))
        command = ["srun", "-N", "2", "-n", "2", sys.executable, "-m", "expertp", "train"]
        command += [str(tmp_path / f"{name}.yaml"), "--out", str(tmp_path / name)]
        return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    done = srun("two")
    _, errors = done.communicate(timeout=120)
    assert done.returncode == 0, errors
    assert read_run(tmp_path / "two").summary().world_size == 2
    train(build(RunSpec, run_tree(data, train={"micro_batch": 4}), "run"), tmp_path / "one")
    assert records(tmp_path / "two") == records(tmp_path / "one")

    refused = srun("refused", micro_batch=8)
    _, errors = refused.communicate(timeout=120)
    assert refused.returncode == 2
    assert errors.count("expertp: 2 processes cannot share a batch") == 1
    assert not (tmp_path / "refused").exists()

    stopped = srun("stopped", steps=100_000, eval_every=0)
    until = time.monotonic() + 120
    while not (tmp_path / "stopped" / "metrics.jsonl").exists() or not records(tmp_path / "stopped"):
        assert time.monotonic() < until
        time.sleep(0.1)
    jobs = slurm.ask("squeue", "-h", "-o", "%i").split()
    slurm.ask("scancel", "--signal=TERM", *jobs)
    _, errors = stopped.communicate(timeout=120)
    assert stopped.returncode == 143, errors
    assert read_run(tmp_path / "stopped").summary().status == "stopped"
