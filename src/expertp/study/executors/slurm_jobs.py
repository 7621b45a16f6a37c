"""What SLURM says about the jobs of a study. STUDY/slurm has the script, the number of the job and one log per task."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from dataclasses import asdict, dataclass

from expertp.config import content_hash, run_id
from expertp.errors import DamagedError, InputError, RunError
from expertp.study.store import StudyDirectory
from expertp.util.records import read_record, write_record

FOLDER, RECORD_FILE = "slurm", "job.json"
# How long cancelled jobs may take to save and end, and how often they are looked at.
CANCEL_SECONDS, LOOK_SECONDS = 300.0, 1.0
# How long SLURM may refuse to cancel jobs: its controller may restart.
REFUSED_SECONDS = 60.0


@dataclass(frozen=True)
class JobRecord:
    """slurm/job.json: the last array that was submitted, and a hash of the runs that its tasks know."""

    job: str
    runs: str = ""


@dataclass(frozen=True)
class Jobs:
    """A job array: its number, its tasks that have not ended, by state (None: SLURM does not answer), and its runs."""

    job: str
    states: dict[str, int] | None
    runs: str


def jobs_of(directory: StudyDirectory) -> Jobs | None:
    """Return the array that was submitted last for a study; None if there was none."""
    try:
        record = read_record(directory.path / FOLDER / RECORD_FILE, JobRecord, "remove it")
    except (FileNotFoundError, NotADirectoryError, DamagedError):
        return None
    return Jobs(record.job, states_of(record.job), record.runs) if record.job.isdecimal() else None


def active_job(directory: StudyDirectory) -> str | None:
    """Return the active array of a study; one that was submitted before the study grew is cancelled."""
    jobs = jobs_of(directory)
    if jobs is not None and jobs.states is None:
        raise RunError(f"SLURM does not answer about job {jobs.job} of this study; try again later")
    if jobs is None or not jobs.states:
        return None
    if jobs.runs == hash_of_runs(directory):
        return jobs.job
    cancel(jobs.job)
    return None


def note_job(directory: StudyDirectory, job: str) -> None:
    """Record the array that was submitted for a study."""
    write_record(directory.path / FOLDER / RECORD_FILE, asdict(JobRecord(job, hash_of_runs(directory))))


def hash_of_runs(directory: StudyDirectory) -> str:
    """Return a hash of all runs of a study, whose device need not be known yet."""
    return content_hash(sorted(run_id(run, directory.data_hash) for run in directory.runs.values()))


def states_of(job: str) -> dict[str, int] | None:
    """Return the tasks of an array that have not ended, by state; None if SLURM does not answer."""
    try:
        found = run("squeue", "--array", "--noheader", f"--jobs={job}", "--format=%T")
    except InputError:
        return None
    if found.returncode != 0:
        return {} if "Invalid job id" in found.stderr else None
    return dict(Counter(found.stdout.split()))


def cancel(job: str) -> None:
    """Cancel an array and wait until its workers have saved and ended; raise `RunError` if SLURM does not cancel it."""
    begun, answer = time.monotonic(), run("scancel", job)  # at once: squeue may miss a job that is being requeued
    while states_of(job) != {} and time.monotonic() - begun < CANCEL_SECONDS:
        if answer.returncode != 0 and time.monotonic() - begun >= REFUSED_SECONDS:
            raise RunError(f"SLURM does not cancel job {job}: {' '.join(answer.stderr.split())}; run scancel {job}")
        time.sleep(LOOK_SECONDS)
        if answer.returncode != 0:
            answer = run("scancel", job)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of SLURM."""
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise InputError(
            f"{command[0]} is not installed here; run the command on a machine of a SLURM cluster"
        ) from None
