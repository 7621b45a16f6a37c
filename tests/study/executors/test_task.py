"""Jobs of a study as processes, one of them in a container of its own, as on another machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from clusters import rows
from runs import study_tree

from expertp.study.executors.local import EXIT_REFUSED, EXIT_TOLD
from expertp.study.load import build_study
from expertp.study.spec import StudySpec
from expertp.study.store import open_study
from expertp.util.machine import process_space

TASK = (sys.executable, "-m", "expertp.study.executors.task")
ELSEWHERE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
LEASE_SECONDS = 4.0


def can_unshare() -> bool:
    has_it = shutil.which("unshare") is not None
    return has_it and subprocess.run([*ELSEWHERE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_unshare(), reason="no right to make a process namespace (unshare --pid)")
def test_the_run_of_a_job_that_was_killed_on_another_machine_goes_on_here(
    data: Path, tmp_path: Path, quiet: Callable[[StudySpec], list[dict[str, str]]]
) -> None:
    """Process numbers of the other machine mean nothing here, so only its silence says that it is dead."""
    tree = study_tree(data, grid=(-6,), seeds=(0,), steps=150, eval_every=150, checkpoint_seconds=0.2)
    study = build_study({**tree, "verdict": None}, "study:")
    directory = open_study(tmp_path, study)
    environment = {**os.environ, "EXPERTP_LEASE_SECONDS": str(LEASE_SECONDS)}
    with subprocess.Popen([*ELSEWHERE, *TASK, str(tmp_path), "there"], env=environment) as there:
        until, held = time.monotonic() + 120, dict[str, str]()
        while not held and time.monotonic() < until:
            time.sleep(0.05)
            if list(tmp_path.glob("runs/*/checkpoints/step-*")):
                held = {identity: holder.space for identity, holder in directory.running().items()}
        ((identity, space),) = held.items()
        assert space != process_space()
        there.kill()
    killed_at = time.time()
    assert subprocess.run([*TASK, str(tmp_path), "here"], env=environment, timeout=300, check=False).returncode == 0
    directory.write_results()
    assert rows(tmp_path) == quiet(study)
    taken = directory.leases.folder / identity / "2.json"
    assert json.loads(taken.read_text())["space"] == process_space()
    assert not (taken.parent / "3.json").exists(), "it is taken over once"
    run = json.loads((directory.place(identity) / "run.json").read_text())
    assert run["identity"] == identity
    log = (directory.place(identity) / "metrics.jsonl").read_text()
    assert log.count("\n") == len({json.loads(line)["step"] for line in log.splitlines()}), "no step is there twice"
    assert time.time() - killed_at > LEASE_SECONDS


@pytest.mark.heavy
def test_a_job_that_is_told_to_stop_saves_and_asks_to_be_started_again(data: Path, tmp_path: Path) -> None:
    open_study(tmp_path, build_study({**study_tree(data, steps=20_000, eval_every=0), "verdict": None}, "study:"))
    with subprocess.Popen([*TASK, str(tmp_path), "job"]) as job:
        until = time.monotonic() + 120
        while not list(tmp_path.glob("runs/*/metrics.jsonl")) and time.monotonic() < until:
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=60) == EXIT_TOLD
    assert list(tmp_path.glob("runs/*/checkpoints/step-*"))
    assert (tmp_path / "workers/job-0.log").exists()


@pytest.mark.heavy
def test_a_job_on_a_machine_without_the_device_refuses_in_one_line(data: Path, tmp_path: Path) -> None:
    open_study(tmp_path, build_study(study_tree(data, device="cuda"), "study:"), trains_here=False)
    finished = subprocess.run([*TASK, str(tmp_path), "job"], capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == EXIT_REFUSED
    assert finished.stderr == "expertp: train.device=cuda, but torch finds no CUDA device; set train.device=cpu\n"
