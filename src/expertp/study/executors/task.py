"""One job of a study on a cluster: `python -m expertp.study.executors.task STUDY_DIRECTORY NAME [PARENT]`.

It is an executor with one worker on the machine where the job runs, so a worker that dies is replaced, and its death is
the failure of its run. NAME begins the name of the worker's log. The job ends when no run is left, saves and stops on
SIGTERM, and when the process PARENT, if it is given, has ended.
"""

import os
import signal
import subprocess
import sys
import time

from expertp.errors import InputError, RunError, one_line
from expertp.study.executors.local import EXIT_REFUSED, EXIT_TOLD, POLL_SECONDS, LocalExecutor
from expertp.study.store import read_study
from expertp.util.files import stopping_on_full_disk


def main(path: str, name: str, parent: int | None = None) -> int:
    """Train runs of a study until none is left; return the exit code: 0, 1 (failed), 2 (refused), 75 (told)."""
    stopped: list[bool] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.append(True))

    def should_stop() -> bool:
        return bool(stopped) or parent not in (None, os.getppid())

    try:
        directory = read_study(path)
        with stopping_on_full_disk(directory.path):
            LocalExecutor(1, name=name).run_workers(directory, should_stop, tick=lambda: None)
        return EXIT_TOLD if should_stop() and not directory.settled().has_ended() else 0
    except (InputError, RunError) as error:
        print(one_line(f"expertp: {error}"), file=sys.stderr)
        return EXIT_REFUSED if isinstance(error, InputError) else 1


def run_job(path: str, name: str) -> int:
    """Run one job of a study as a child of this process, again if it was told to stop; return its exit code."""
    command = [sys.executable, "-m", "expertp.study.executors.task", path, name, str(os.getpid())]
    while True:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            while (code := process.poll()) is None:
                time.sleep(POLL_SECONDS)  # a KeyboardInterrupt, with which Ray cancels a task, would not end a `wait`
        finally:
            process.terminate()
            process.wait()
        if code != EXIT_TOLD:
            return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:4])))
