"""A worker's process: `python -m expertp.study.executors.worker STUDY_DIRECTORY PARENT`.

It ends when no run is left. It saves and stops on SIGTERM, and when the process PARENT that started it has ended, so
that no worker outlives a sweep that was killed.
"""

import errno
import os
import signal
import sys

import torch

from expertp.study.executors.local import EXIT_NOT_WRITABLE
from expertp.study.store import read_study
from expertp.study.sweep import work
from expertp.util.files import FullDiskError, not_writable


def main(path: str, parent: int) -> int:
    """Train runs of a study until none is left; return the exit code."""
    stopped: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole process group; the sweep stops its workers by SIGTERM
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        work(read_study(path), should_stop=lambda: bool(stopped) or os.getppid() != parent)
    except FullDiskError as error:
        return EXIT_NOT_WRITABLE[not_writable(error) or errno.ENOSPC]
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
