"""Workers as the tasks of a SLURM job array.

The study's directory is all that the tasks share. A task that is preempted, or whose time ends, saves and requeues
itself: see job.sbatch.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

from expertp.errors import InputError, RunError, shown
from expertp.study.executors.slurm_jobs import CANCEL_SECONDS, FOLDER, active_job, cancel, note_job, run, states_of
from expertp.study.store import StudyDirectory
from expertp.study.table import ENDED
from expertp.util.files import exclusive, write_atomically

SCRIPT_FILE = "job.sbatch"
# How often the executor shows progress, looks at the study and asks SLURM.
POLL_SECONDS, LOOK_SECONDS, ASK_SECONDS = 0.2, 1.0, 10.0
# Number of answers without the job after which it has ended; a job that is being requeued may be missing from one.
TIMES_GONE = 3
# Options of sbatch that would break the array, long ones and short ones; short ones without a value may come before.
OURS = ("--array", "--wrap", "--wait", "--parsable", "--test-only", "--output", "--open-mode")
OURS_SHORT = re.compile(r"-[hHkOQsvV]*[aoW]")


@dataclass(frozen=True)
class SlurmExecutor:
    """Submits an array of workers, and waits until all runs have ended.

    An array that is active is not submitted again if its tasks know all runs: they read the study when they start.

    Args:
        workers: number of tasks.
        options: of the user, for sbatch.
    """

    workers: int
    options: tuple[str, ...] = ()

    @property
    def trains_here(self) -> bool:
        """See `expertp.study.sweep.Executor`."""
        return False

    def describe(self, directory: StudyDirectory) -> str:
        """See `expertp.study.sweep.Executor`."""
        note = "the time depends on the machines of the cluster; no step was timed here"
        return "\n".join([note, "", shlex.join(self.command(directory)), "", self.script(directory)])

    def run_workers(self, directory: StudyDirectory, should_stop: Callable[[], bool], tick: Callable[[], None]) -> None:
        """See `expertp.study.sweep.Executor`."""
        job, is_new = self._active_or_submitted(directory)
        look_at, ask_at, times_gone = 0.0, time.monotonic() + ASK_SECONDS, 0
        while True:
            time.sleep(POLL_SECONDS)
            tick()
            now = time.monotonic()
            if should_stop():
                return cancel(job)
            if now >= look_at:
                look_at = now + LOOK_SECONDS
                if directory.settled().has_ended():
                    return None
            if now >= ask_at:
                ask_at = now + ASK_SECONDS
                times_gone = times_gone + 1 if states_of(job) == {} else 0
                if times_gone < TIMES_GONE or directory.settled().has_ended():
                    continue
                if is_new:
                    raise RunError(
                        f"job {job} has ended, but runs are left; its logs in {directory.path / FOLDER} say why; run "
                        "the same command again to continue"
                    )
                (job, is_new), times_gone = self._active_or_submitted(directory), 0  # its last tasks were just ending

    def command(self, directory: StudyDirectory) -> list[str]:
        """Return the command that submits the script; options of the user come last, so they count."""
        folder, processes = directory.path.absolute() / FOLDER, directory.study.processes
        missing = sum(result.status not in ENDED for result in directory.results())
        return [
            *("sbatch", "--parsable", f"--job-name=expertp-{directory.path.absolute().name}"),
            f"--array=0-{max(1, min(self.workers, missing)) - 1}",
            f"--output={str(folder).replace('%', '%%')}/%A_%a.log",
            *([f"--cpus-per-task={processes}"] if processes > 1 else []),
            *(*self.options, str(folder / SCRIPT_FILE)),
        ]

    @staticmethod
    def script(directory: StudyDirectory) -> str:
        """Return the script of one task."""
        worker = [sys.executable, "-m", "expertp.study.executors.task", str(directory.path.absolute())]
        template = files("expertp.study.executors").joinpath(SCRIPT_FILE).read_text(encoding="utf-8")
        return template.replace("COMMAND", shlex.join(worker))

    def _active_or_submitted(self, directory: StudyDirectory) -> tuple[str, bool]:
        """Return the active array of a study, or submit one; and whether it is new."""
        folder = directory.path / FOLDER
        busy = f"{folder}: another sweep is submitting this study; wait for it"
        with exclusive(folder, busy, patience=CANCEL_SECONDS):  # the other one may have to cancel an array first
            if (found := active_job(directory)) is not None:
                return found, False
            write_atomically(folder / SCRIPT_FILE, self.script(directory).encode())
            submitted = run(*self.command(directory))
            if submitted.returncode != 0:
                raise InputError(f"sbatch refuses the job: {' '.join(submitted.stderr.split())}; change --sbatch")
            job = submitted.stdout.strip().partition(";")[0]  # a cluster's name may follow
            note_job(directory, job)
        return job, True


def sbatch_options(text: str) -> tuple[str, ...]:
    """Return options for sbatch as a list of arguments; no shell reads them.

    >>> sbatch_options("--partition=a100 --comment='two words'")
    ('--partition=a100', '--comment=two words')
    """
    try:
        options = tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(f"--sbatch {shown(text)}: {str(error).lower()}") from None
    if options and not options[0].startswith("-"):
        raise InputError(f"--sbatch {shown(text)}: give options, such as --sbatch='--partition=NAME --time=4:00:00'")
    if taken := [each for each in options if _is_ours(each)]:
        raise InputError(f"--sbatch: {shown(taken[0])} is set by expertp; leave it out (--workers sets the array)")
    return options


def _is_ours(option: str) -> bool:
    """Return whether an option may mean one of ours; sbatch takes long ones abbreviated, and short ones with a value.

    >>> _is_ours("-Qa0-9"), _is_ours("--out=x"), _is_ours("--wait-all-nodes=1"), _is_ours("-Jfoo")
    (True, True, False, False)
    """
    name = option.partition("=")[0]
    return OURS_SHORT.match(option) is not None or (len(name) > 2 and any(each.startswith(name) for each in OURS))
