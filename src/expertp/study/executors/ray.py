"""Workers as tasks of a Ray cluster; needs the extra `ray`, which is imported where it is used.

A task starts one job of the study as a process of its own and waits for it. Ray starts a task again when the process or
the node that ran it has died; the job, if it still lives, then saves and stops.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any

from expertp.errors import InputError, RunError, one_line
from expertp.study.executors.local import EXIT_REFUSED, EXIT_TOLD
from expertp.study.store import AUTO, StudyDirectory

POLL_SECONDS, LOOK_SECONDS = 0.2, 1.0
# How long tasks that are cancelled may take to save.
CANCEL_SECONDS = 60.0


@dataclass(frozen=True)
class RayExecutor:
    """Starts tasks on a Ray cluster, and waits until all runs have ended.

    Args:
        workers: number of tasks; those that find no free CPU or GPU wait.
        address: of the cluster; without one, that in RAY_ADDRESS, or a cluster on this machine for the sweep alone.
    """

    workers: int
    address: str | None = None

    @property
    def trains_here(self) -> bool:
        """See `expertp.study.sweep.Executor`."""
        return False

    def describe(self, directory: StudyDirectory) -> str:
        """See `expertp.study.sweep.Executor`."""
        where = self.address or os.environ.get("RAY_ADDRESS") or "a cluster on this machine"
        return f"{self.workers} tasks on Ray ({where}) for {directory.path.absolute()}; no step was timed here"

    def run_workers(self, directory: StudyDirectory, should_stop: Callable[[], bool], tick: Callable[[], None]) -> None:
        """See `expertp.study.sweep.Executor`."""
        with _connected(self.address) as ray:
            gpus, processes = _gpus(directory, ray.cluster_resources()), directory.study.processes
            task = ray.remote(num_cpus=processes, num_gpus=gpus * processes, max_retries=-1)(run_job)
            path = str(directory.path.absolute())
            tasks = {task.remote(path, f"ray-{number}"): number for number in range(self.workers)}
            look_at = 0.0
            try:
                while tasks:
                    time.sleep(POLL_SECONDS)
                    tick()
                    if should_stop():
                        return
                    for done in ray.wait(list(tasks), num_returns=len(tasks), timeout=0)[0]:
                        number = tasks.pop(done)
                        if _goes_on(_code(ray, done), directory, number):
                            tasks[task.remote(path, f"ray-{number}")] = number
                    if time.monotonic() >= look_at:
                        look_at = time.monotonic() + LOOK_SECONDS
                        if directory.settled().has_ended():
                            return
            finally:
                _cancel(ray, list(tasks))


def run_job(path: str, name: str) -> int:
    """Run one job of a study as a child of a process of Ray, and return its exit code."""
    command = [sys.executable, "-m", "expertp.study.executors.task", path, name, str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        while (code := process.poll()) is None:
            time.sleep(POLL_SECONDS)  # a KeyboardInterrupt, with which Ray cancels a task, would not end a `wait`
        return code
    finally:
        process.terminate()
        process.wait()


def _code(ray: Any, done: Any) -> int:
    """Return the exit code of a job that has ended."""
    try:
        return int(ray.get(done))
    except ray.exceptions.RayError as error:  # a node without the package, a task that does not fit in memory
        cause = one_line(str(error).strip().splitlines()[-1])
        raise RunError(f"Ray could not run a job of the study: {cause}; mend the cluster and run it again") from None


def _goes_on(code: int, directory: StudyDirectory, number: int) -> bool:
    """Return whether a job must be started again, or raise what it says."""
    log = directory.path / "workers" / f"ray-{number}-0.log"
    if code == EXIT_REFUSED:
        raise InputError(f"a node of the Ray cluster cannot train this study; {log} there says why")
    if code not in (0, EXIT_TOLD):
        raise RunError(
            f"a job on the Ray cluster has ended with code {code}; see {log}, and run the same command again"
        )
    return code == EXIT_TOLD


def _gpus(directory: StudyDirectory, resources: dict[str, float]) -> int:
    """Return the number of GPUs of a process."""
    asked = directory.study.train.device if directory.device == AUTO else directory.device
    if asked == "cuda" and not resources.get("GPU"):
        raise InputError(
            "the study needs CUDA, but the Ray cluster has no GPU; set train.device=cpu, or use another one"
        )
    return int(asked != "cpu" and bool(resources.get("GPU")))


def _cancel(ray: Any, tasks: list[Any]) -> None:
    """Cancel tasks and wait until their workers have saved."""
    for task in tasks:
        ray.cancel(task)
    if tasks:
        ray.wait(tasks, num_returns=len(tasks), timeout=CANCEL_SECONDS)


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Connect to a cluster, or start one on this machine; leave it at the end unless the caller was connected."""
    try:
        import ray
    except ImportError:
        raise InputError("--executor ray needs the extra: pip install 'expertp[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    options = {"address": address, "log_to_driver": False, "logging_level": "error"}
    try:
        ray.init(**options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(f"no Ray cluster at {address or 'this machine'}: {error}") from None
    if is_main:  # Ray has a handler of its own, which ends the process
        for number, handler in before.items():
            signal.signal(number, handler)
    try:
        with redirect_stdout(sys.stderr):  # Ray prints what happens to its processes
            yield ray
    finally:
        with suppress(Exception):
            ray.shutdown()
