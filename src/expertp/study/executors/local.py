"""Workers as processes on this machine."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from expertp.errors import InputError, RunError
from expertp.study.executors.processes import WorkerProcesses, start_worker
from expertp.study.store import StudyDirectory
from expertp.util.files import NOT_WRITABLE
from expertp.util.machine import host
from expertp.util.text import plural

POLL_SECONDS = 0.2
# Number of workers that may die outside of a run before the sweep gives up.
MOST_DEATHS = 5
# Exit codes of a worker that could write no file, by the number of the system's error.
EXIT_NOT_WRITABLE = {number: 70 + place for place, number in enumerate(NOT_WRITABLE)}
# Exit code of a worker that cannot train the study on this machine; the last line of its output says why.
EXIT_REFUSED = 2
# Exit code of a worker, or of a job, that was told to stop while runs are left: start it again (sysexits' EX_TEMPFAIL).
EXIT_TOLD = 75
# Exit code of a worker of several processes that have parted because of a failed run, which is noted: start it again.
EXIT_PARTED = 76


@dataclass(frozen=True)
class LocalExecutor:
    """Starts workers, and replaces those that were killed. A worker has as many processes as a run of the study needs.

    Small models gain little from a second thread: several workers with one thread each are fastest.

    Args:
        workers: number of workers.
        threads: number of threads per process.
        name: begins the names of the workers' logs; default: the name of this machine.
    """

    workers: int
    threads: int = 1
    name: str = ""

    @property
    def trains_here(self) -> bool:
        """See `expertp.study.sweep.Executor`."""
        return True

    def describe(self, directory: StudyDirectory) -> str:
        """See `expertp.study.sweep.Executor`."""
        return f"{plural(self.workers, 'worker')} on this machine for {directory.path}"

    def run_workers(self, directory: StudyDirectory, should_stop: Callable[[], bool], tick: Callable[[], None]) -> None:
        """See `expertp.study.sweep.Executor`."""
        alive = {number: self._start(directory, number) for number in range(self.workers)}
        deaths = 0
        try:
            while alive:
                time.sleep(POLL_SECONDS)
                tick()
                if should_stop():
                    return
                for number, worker in list(alive.items()):
                    code = worker.poll()
                    if code is None:
                        continue
                    del alive[number]
                    for error in (each for each, expected in EXIT_NOT_WRITABLE.items() if code == expected):
                        raise OSError(error, os.strerror(error))
                    if code == EXIT_REFUSED:
                        raise InputError(_last_line(self._log(directory, number)))
                    if code == 0:
                        continue
                    deaths += code != EXIT_PARTED and not self._blames_a_run(directory, worker.pid, code)
                    if deaths > MOST_DEATHS:
                        raise RunError(
                            f"too many workers died; the last {_how(code)}, see {self._log(directory, number)}"
                        )
                    alive[number] = self._start(directory, number)
        finally:
            _end(alive)

    def _start(self, directory: StudyDirectory, number: int) -> WorkerProcesses:
        return start_worker(directory.path, self._log(directory, number), self.threads, directory.study.processes)

    def _log(self, directory: StudyDirectory, number: int) -> Path:
        return directory.path / "workers" / f"{self.name or host()}-{number}.log"

    @staticmethod
    def _blames_a_run(directory: StudyDirectory, pid: int, code: int) -> bool:
        """Record a worker's death as the failure of the run that it was training; return False if there was none."""
        identity = directory.was_at(pid)
        if identity is None or code in (0, EXIT_TOLD):
            return False
        directory.note_failure(identity, f"the worker {_how(code)}; is there enough memory?")
        return True


def _end(alive: Mapping[int, WorkerProcesses]) -> None:
    """Tell workers to save and stop, and wait for them."""
    for worker in alive.values():
        worker.end()
    for worker in alive.values():
        worker.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else f"{log}: a worker has refused the study"


def _how(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
