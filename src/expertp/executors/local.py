"""Workers on this machine: one process each, with its own share of the cores."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from expertp.errors import RunError
from expertp.study_store import StudyDirectory

POLL_SECONDS = 0.2
# How often workers may end without a run to blame, before it must be something else.
MOST_DEATHS = 5
# Variables by which torch's libraries choose their number of threads.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class LocalExecutor:
    """Starts worker processes and replaces one that was killed.

    Small models gain little from a second thread, so several workers with one thread each are the fastest.

    Args:
        workers: how many processes.
        threads: of each.
    """

    workers: int
    threads: int = 1

    def run_workers(self, directory: StudyDirectory, should_stop: Callable[[], bool], tick: Callable[[], None]) -> None:
        """See `expertp.sweep.Executor`."""
        alive = {number: self._start(directory, number) for number in range(self.workers)}
        deaths = 0
        try:
            while alive:
                time.sleep(POLL_SECONDS)
                tick()
                if should_stop():
                    return
                for number, process in list(alive.items()):
                    code = process.poll()
                    if code is None:
                        continue
                    del alive[number]
                    if code == 0 and directory.has_ended():
                        continue
                    deaths += not self._blames_a_run(directory, process)
                    if deaths > MOST_DEATHS:
                        raise RunError(
                            f"workers {_how(code)} again and again; see {directory.path}/workers/{number}.log"
                        )
                    alive[number] = self._start(directory, number)
        finally:
            _end(alive)

    def _start(self, directory: StudyDirectory, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "expertp.executors.worker", str(directory.path), str(os.getpid())]
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(self.threads))}
        with (directory.path / "workers" / f"{number}.log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    @staticmethod
    def _blames_a_run(directory: StudyDirectory, process: subprocess.Popen[bytes]) -> bool:
        """Note a worker's death as the failure of the run that it was at, if it was at one."""
        identity = directory.was_at(process.pid)
        if identity is None or process.returncode == 0:
            return False
        directory.note_failure(identity, f"its worker {_how(process.returncode)}; is there enough memory?")
        return True


def _end(alive: Mapping[int, subprocess.Popen[bytes]]) -> None:
    """Have workers save and stop, and wait for them."""
    for process in alive.values():
        process.send_signal(signal.SIGTERM)
    for process in alive.values():
        process.wait()


def _how(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
