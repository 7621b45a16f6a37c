"""Train the runs of a study that are missing.

A worker is a process that walks through the study's runs and trains each one that nobody else has done or holds: runs
are locked on disk, so any number of workers, of any number of `sweep` commands, on any machine that sees the directory,
share the work without a queue. An executor only has to start workers and see that they go on.
"""

import time
from collections.abc import Callable
from typing import Protocol

from expertp.errors import BusyError
from expertp.machine import release_memory
from expertp.study_store import DONE, ENDED, Result, StudyDirectory
from expertp.train import train

# How long a worker waits when all that is left is in other hands.
WAIT_SECONDS = 1.0


class Executor(Protocol):
    """Whoever can run workers: this machine, a cluster's scheduler."""

    @property
    def workers(self) -> int:
        """How many runs are trained at a time."""

    def run_workers(self, directory: StudyDirectory, should_stop: Callable[[], bool], tick: Callable[[], None]) -> None:
        """Return when all workers have come to their end, or have stopped because they should; call `tick` often."""


def run_study(
    directory: StudyDirectory,
    executor: Executor,
    should_stop: Callable[[], bool] = lambda: False,
    tick: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Train what is missing of a study, write results.csv, and return how all runs stand.

    Args:
        directory: the study.
        executor: starts workers.
        should_stop: asked often; when it says yes, runs are saved and go on at the next call.
        tick: called often, to show progress.
    """
    directory.forget_failures()
    if not directory.has_ended():
        executor.run_workers(directory, should_stop, tick)
    results = directory.write_table()
    for result in results:  # a worker that was killed at its last moment leaves some
        if result.status in DONE and not directory.study.keep_checkpoints:
            directory.drop_checkpoints(result.identity)
    return results


def work(directory: StudyDirectory, should_stop: Callable[[], bool]) -> None:
    """Train what is missing until all runs have ended, or until told to stop.

    A run that somebody else is at is passed over and looked at again later: whoever has it may be killed.
    """
    left = list(directory.runs)
    while left and not should_stop():
        left = [identity for identity in left if directory.result(identity).status not in ENDED]
        has_worked = [_try_one(directory, identity, should_stop) for identity in left if not should_stop()]
        if left and not any(has_worked):
            time.sleep(WAIT_SECONDS)


def _try_one(directory: StudyDirectory, identity: str, should_stop: Callable[[], bool]) -> bool:
    """Train one run if it is free and has not ended; return whether it was."""
    if directory.result(identity).status in ENDED:
        return False
    try:
        with directory.at_work(identity):
            result = train(directory.runs[identity], directory.place(identity), should_stop=should_stop)
            if result.status != "stopped" and not directory.study.keep_checkpoints:
                directory.drop_checkpoints(identity)
    except BusyError:
        return False
    except Exception as error:  # whatever it is, the other runs go on
        directory.note_failure(identity, f"{type(error).__name__}: {error}")
    release_memory()
    return True
