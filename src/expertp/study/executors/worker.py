"""A worker's process: `python -m expertp.study.executors.worker STUDY_DIRECTORY PARENT`.

It ends when no run is left. It saves and stops on SIGTERM, and when the process PARENT that started it has ended, so
that no worker outlives a sweep that was killed.
"""

import os
import signal
import sys

import torch

from expertp.study.store import read_study
from expertp.study.sweep import work


def main(path: str, parent: int) -> None:
    """Train runs of a study until none is left."""
    stopped: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole process group; the sweep stops its workers by SIGTERM
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    work(read_study(path), should_stop=lambda: bool(stopped) or os.getppid() != parent)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
