"""A worker's process: `python -m expertp.study.executors.worker STUDY_DIRECTORY PARENT`.

It ends when no run is left. It saves and stops on SIGTERM, and when the process PARENT that started it has ended, so
that no worker outlives a sweep that was killed. If a run needs several processes, this program is started as often,
with the variables of torchrun.
"""

import errno
import os
import signal
import sys

import torch

from expertp.errors import InputError, RunError, one_line
from expertp.study.executors.local import EXIT_NOT_WRITABLE, EXIT_PARTED, EXIT_REFUSED, EXIT_TOLD
from expertp.study.store import read_study, settle_device
from expertp.study.sweep import PartedError, work
from expertp.training.ranks import launched_ranks
from expertp.util.files import FullDiskError, not_writable
from expertp.util.machine import end_rank, rank_and_ranks


def main(path: str, parent: int) -> int:
    """Train runs of a study until none is left; return the exit code."""
    stopped: list[bool] = []

    def should_stop() -> bool:
        return bool(stopped) or os.getppid() != parent

    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole process group; the sweep stops its workers by SIGTERM
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        with launched_ranks() as ranks:
            directory = ranks.agreed(lambda: settle_device(read_study(path)))
            work(directory, should_stop, ranks)
    except FullDiskError as error:
        return EXIT_NOT_WRITABLE[not_writable(error) or errno.ENOSPC]
    except PartedError:
        return EXIT_PARTED
    except InputError as error:
        if rank_and_ranks()[0] == 0:
            print(one_line(str(error)), file=sys.stderr)
        return EXIT_REFUSED
    except RunError as error:
        print(one_line(str(error)), file=sys.stderr)
        return 1
    return EXIT_TOLD if should_stop() and not directory.has_ended() else 0


if __name__ == "__main__":
    code = main(sys.argv[1], int(sys.argv[2]))
    end_rank(code)
    sys.exit(code)
