"""A worker's process: `python -m expertp.executors.worker STUDY_DIRECTORY PARENT`.

It ends when no run is left, saves and stops on SIGTERM, and stops as well when the process that started it, PARENT, is
gone, so that no worker outlives a sweep that was killed.
"""

import os
import signal
import sys

import torch

from expertp.study_store import read_study
from expertp.sweep import work


def main(path: str, parent: int) -> None:
    """Work on a study until nothing is left to do."""
    told: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the sweep passes on what it means
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    work(read_study(path), should_stop=lambda: bool(told) or os.getppid() != parent)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
