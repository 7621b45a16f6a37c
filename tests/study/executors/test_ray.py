"""Studies on a real Ray cluster on this machine."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import yaml
from clusters import parent_of, rows
from runs import study_tree

from expertp.errors import InputError, RunError
from expertp.study.executors import ray as module
from expertp.study.executors.ray import RayExecutor, _needs
from expertp.study.load import build_study
from expertp.study.spec import StudySpec
from expertp.study.store import open_study, read_study
from expertp.study.sweep import sweep

HAS_RAY = importlib.util.find_spec("ray") is not None
TRAIN = {"steps": 100, "eval_every": 100, "checkpoint_seconds": 0.2}
# Ray lowers the priority of its processes, which then wait for all others of a busy machine.
RAY = {"RAY_worker_niceness": "0"}


@pytest.mark.heavy
@pytest.mark.skipif(not HAS_RAY, reason="no Ray; pip install -e '.[ray]' has it")
def test_a_process_of_ray_that_is_killed_changes_nothing(
    data: Path, tmp_path: Path, quiet: Callable[[StudySpec], list[dict[str, str]]]
) -> None:
    tree = study_tree(data, grid=(-6,), seeds=(0,), **TRAIN) | {"verdict": None}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(tree))
    out = tmp_path / "study"
    command = [sys.executable, "-m", "expertp", "sweep", str(tmp_path / "study.yaml"), "--out", str(out)]
    command += ["--executor", "ray", "--workers", "2"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | RAY
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        until, holder = time.monotonic() + 240, None
        while holder is None and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
            if list(out.glob("runs/*/checkpoints/step-*")):
                holder = next(iter(read_study(out).running().values()), None)
        assert holder is not None, process.communicate()
        killed = parent_of(parent_of(holder.pid))
        assert b"ray::" in Path(f"/proc/{killed}/cmdline").read_bytes()
        os.kill(killed, signal.SIGKILL)
        text, error = process.communicate(timeout=400)
    assert process.returncode == 0, error
    assert text.startswith("4 runs: 4 finished")
    assert rows(out) == quiet(build_study(tree, "study:"))


def raise_error(path: str, name: str) -> int:
    raise ModuleNotFoundError(f"No module named 'expertp', for {path} and {name}")


@pytest.mark.heavy
@pytest.mark.skipif(not HAS_RAY, reason="no Ray; pip install -e '.[ray]' has it")
def test_a_task_that_raises_is_one_line(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raise_error.__module__ = "__main__"  # Ray then sends the function itself: its processes do not have the tests
    monkeypatch.setattr(module, "run_job", raise_error)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    study = build_study(study_tree(data, grid=(-6,), seeds=(0,)) | {"verdict": None}, "study:")
    with pytest.raises(
        RunError, match=r"could not run a job .*: ModuleNotFoundError: No module named .*; mend"
    ) as caught:
        sweep(open_study(tmp_path, study, trains_here=False), RayExecutor(1))
    assert "\n" not in str(caught.value)


def test_without_ray_the_command_says_what_to_install(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    study = build_study(study_tree(data), "study:")
    with pytest.raises(InputError, match=r"ray needs ray: pip install -e '\.\[ray\]'"):
        sweep(open_study(tmp_path, study, trains_here=False), RayExecutor(1))


class NoRay:
    """Ray on a machine where no cluster answers."""

    @staticmethod
    def is_initialized() -> bool:
        return False

    @staticmethod
    def init(address: str, **_: object) -> NoReturn:
        raise ConnectionError(f"asked {address}")


@pytest.mark.parametrize(
    ("address", "variable", "asked"),
    [(None, None, "local"), (None, "", "local"), (None, "head:6379", "head:6379"), ("auto", "head:6379", "auto")],
)
def test_a_cluster_that_happens_to_run_here_is_joined_only_if_the_user_says_so(
    address: str | None, variable: str | None, asked: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`local` starts a cluster; without an address, Ray would join the one of another user."""
    monkeypatch.setitem(sys.modules, "ray", NoRay)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    directory = open_study(tmp_path, build_study(study_tree(data), "study:"), trains_here=False)
    with pytest.raises(InputError, match=f"no Ray cluster at {asked}: asked {asked}"):
        sweep(directory, RayExecutor(1, address))


@pytest.mark.parametrize(
    ("device", "processes", "gpus_there", "gpus"),
    [("cpu", 1, 8, 0), ("auto", 1, 8, 1), ("auto", 4, 0, 0), ("cuda", 4, 4, 4)],
)
def test_a_task_asks_for_a_cpu_per_process_and_for_gpus_where_the_study_needs_them(
    device: str, processes: int, gpus_there: float, gpus: int, data: Path, tmp_path: Path
) -> None:
    study = build_study(study_tree(data, device=device) | {"processes": processes}, "study:")
    directory = open_study(tmp_path, study, trains_here=False)
    nodes = [{"CPU": 2.0}, {"CPU": 4.0, "GPU": float(gpus_there)}]
    assert _needs(directory, nodes) == {"num_cpus": processes, "num_gpus": gpus}


@pytest.mark.parametrize(
    ("device", "processes", "what"),
    [
        ("cuda", 1, "1 CPU and 1 GPU"),
        ("cpu", 8, "8 CPUs"),
        ("auto", 4, "4 CPUs and 4 GPUs"),  # the node with GPUs has two
    ],
)
def test_what_no_node_can_hold_is_refused(device: str, processes: int, what: str, data: Path, tmp_path: Path) -> None:
    study = build_study(study_tree(data, device=device) | {"processes": processes}, "study:")
    directory = open_study(tmp_path, study, trains_here=False)
    nodes = [{"CPU": 4.0}, {"CPU": 4.0}] if device == "cuda" else [{"CPU": 4.0}, {"CPU": 4.0, "GPU": 2.0}]
    with pytest.raises(InputError, match=f"needs {what} on one node, which no node of the Ray cluster has; change"):
        _needs(directory, nodes)


@pytest.mark.heavy
@pytest.mark.skipif(not HAS_RAY, reason="no Ray; pip install -e '.[ray]' has it")
def test_a_real_cluster_without_such_a_node_refuses_at_once(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    tree = study_tree(data, batch_tokens=16 * 4096) | {"processes": 4096}
    directory = open_study(tmp_path, build_study(tree, "study:"), trains_here=False)
    with pytest.raises(InputError, match="needs 4,096 CPUs on one node"):
        sweep(directory, RayExecutor(1))
