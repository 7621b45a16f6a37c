"""The processes of one worker on this machine: one, or as many as train a run together."""

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from expertp.util.machine import without_launcher

# Environment variables that set the number of threads of torch's libraries.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# How long the other processes of a worker may live after one has ended: they notice at their next exchange.
PARTING_SECONDS = 60.0


@dataclass
class WorkerProcesses:
    """The ranks of a worker, with rank 0 first; it holds the leases, and its exit code is that of the worker."""

    ranks: list[subprocess.Popen[bytes]]
    first_end: float | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        """The process that holds the leases."""
        return self.ranks[0].pid

    def poll(self) -> int | None:
        """Return the exit code once all processes have ended; those that outlive another for too long are killed."""
        alive = [rank for rank in self.ranks if rank.poll() is None]
        if not alive:
            return self.ranks[0].returncode
        if len(alive) < len(self.ranks):
            self.first_end = self.first_end or time.monotonic()
            if time.monotonic() - self.first_end > PARTING_SECONDS:
                for rank in alive:
                    rank.kill()
        return None

    def end(self) -> None:
        """Tell all processes to save and stop."""
        for rank in self.ranks:
            rank.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until all processes have ended."""
        while self.poll() is None:
            time.sleep(0.05)


def start_worker(study: Path, log: Path, threads: int, processes: int) -> WorkerProcesses:
    """Start a worker of a study.

    Args:
        study: the study's directory.
        log: file to which the output is appended.
        threads: number of threads per process.
        processes: number of processes; more than one find each other as those of torchrun do.
    """
    command = [sys.executable, "-m", "expertp.study.executors.worker", str(study), str(os.getpid())]
    environment = {**without_launcher(os.environ), **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    meeting = _meeting(processes) if processes > 1 else {}
    ranks = []
    for rank in range(processes):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if meeting else {}
        with log.open("ab") as output:
            variables = {**environment, **meeting, **place}
            ranks.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables)
            )
    return WorkerProcesses(ranks)


def _meeting(processes: int) -> dict[str, str]:
    """Return the variables by which processes of this machine find each other, at a port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    number = str(processes)
    return {
        "WORLD_SIZE": number,
        "LOCAL_WORLD_SIZE": number,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
