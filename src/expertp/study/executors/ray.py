"""Workers as tasks of a Ray cluster; needs the extra `ray`, which is imported where it is used.

A task starts one job of the study as a process of its own and waits for it. Ray starts a task again when the process or
the node that ran it has died; the job, if it still lives, then saves and stops.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any

from expertp.errors import InputError, RunError, how_to_install, one_line
from expertp.study.executors.local import EXIT_REFUSED
from expertp.study.executors.task import run_job
from expertp.study.store import AUTO, StudyDirectory
from expertp.util.text import plural

POLL_SECONDS, LOOK_SECONDS = 0.2, 1.0
# How long tasks that are cancelled may take to save.
CANCEL_SECONDS = 60.0
# Ray's word for a cluster that `ray.init` starts; without it, Ray would join any cluster that runs on this machine.
OWN_CLUSTER = "local"


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
        where = "a cluster on this machine" if self._place == OWN_CLUSTER else self._place
        return f"{self.workers} tasks on Ray ({where}) for {directory.path.absolute()}; no step was timed here"

    def run_workers(self, directory: StudyDirectory, should_stop: Callable[[], bool], tick: Callable[[], None]) -> None:
        """See `expertp.study.sweep.Executor`."""
        with _connected(self._place) as ray:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            task = ray.remote(**_needs(directory, nodes), max_retries=-1)(run_job)
            tasks = [task.remote(str(directory.path.absolute()), f"ray-{number}") for number in range(self.workers)]
            look_at = 0.0
            try:
                while tasks:
                    time.sleep(POLL_SECONDS)
                    tick()
                    if should_stop():
                        return
                    ended, tasks = ray.wait(tasks, num_returns=len(tasks), timeout=0)
                    for each in ended:
                        _check_end(ray, each, directory)
                    if time.monotonic() >= look_at:
                        look_at = time.monotonic() + LOOK_SECONDS
                        if directory.settled().has_ended():
                            return
            finally:
                for each in tasks:
                    ray.cancel(each)
                if tasks:
                    ray.wait(tasks, num_returns=len(tasks), timeout=CANCEL_SECONDS)

    @property
    def _place(self) -> str:
        """Where the cluster is, for Ray."""
        return self.address or os.environ.get("RAY_ADDRESS") or OWN_CLUSTER


def _check_end(ray: Any, task: Any, directory: StudyDirectory) -> None:
    """Raise what a job says that has ended before the study."""
    try:
        code = ray.get(task)
    except ray.exceptions.RayError as error:  # a node without the package, a task that does not fit in memory
        cause = one_line(str(error).strip().splitlines()[-1])
        raise RunError(f"Ray could not run a job of the study: {cause}; mend the cluster and run it again") from None
    logs = directory.path / "workers"
    if code == EXIT_REFUSED:
        raise InputError(f"a node of the Ray cluster cannot train this study; its log in {logs} says why")
    if code != 0:
        raise RunError(
            f"a job on Ray has ended with code {code}; see its log in {logs}, and run the same command again"
        )


def _needs(directory: StudyDirectory, nodes: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """Return what a task asks for: a CPU per process of a run, and a GPU if the study needs one, on a single node."""
    asked = directory.study.train.device if directory.device == AUTO else directory.device
    cpus, has_gpus = directory.study.processes, any(node.get("GPU") for node in nodes)
    gpus = cpus if asked == "cuda" or (asked == AUTO and has_gpus) else 0
    if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        needed = plural(cpus, "CPU") + (f" and {plural(gpus, 'GPU')}" if gpus else "")
        raise InputError(
            f"a worker of this study needs {needed} on one node, which no node of the Ray cluster has; change "
            "`processes` or train.device, or use another cluster"
        )
    return {"num_cpus": cpus, "num_gpus": gpus}


@contextmanager
def _connected(place: str) -> Iterator[Any]:
    """Connect to a cluster, or start one on this machine; leave it at the end unless the caller was connected."""
    try:
        import ray
    except ImportError:
        raise InputError(f"--executor ray needs ray: {how_to_install('ray')}") from None
    if ray.is_initialized():
        yield ray
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        ray.init(address=place, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(f"no Ray cluster at {place}: {error}") from None
    with suppress(ValueError):  # Ray has a handler of its own, which ends the process; other threads have none
        for number, handler in before.items():
            signal.signal(number, handler)
    try:
        with redirect_stdout(sys.stderr):  # Ray prints what happens to its processes
            yield ray
    finally:
        with suppress(Exception):
            ray.shutdown()
