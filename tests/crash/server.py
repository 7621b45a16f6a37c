"""Runs commands in forked children, with faults; a process of its own, so that `faults.c` can be preloaded into it.

It imports the program once. Each child runs one command in a few hundredths of a second instead of seconds.
"""

import ctypes
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

KILL, TEAR = -1, -2
# A command that does not end within this time is a failure of the harness.
SECONDS = 120.0
# What `tune` tunes here: a descent of a few steps, which are taken and left, in place of hundreds of runs.
COORDINATES = ("lr",)


@dataclass(frozen=True)
class Fault:
    """What happens to a command.

    Args:
        root: directory whose files are watched.
        number: the call, from 0 on, at which it happens; -1: calls are only logged.
        action: `KILL`, `TEAR` (write one half, then kill), or the error number with which the call fails.
        reads: count the calls that open a file for reading instead of those that change files.
        log: file to which every counted call is written.
    """

    root: str
    number: int = -1
    action: int = KILL
    reads: bool = False
    log: str = ""


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, or minus the number of the signal that killed it."""

    code: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        """The lines that report an error."""
        lines = [line for line in self.err.splitlines() if line.startswith("expertp:")]
        return [line for line in lines if not line.startswith("expertp: warning:")]


class Server:
    """A process that runs commands in its children; a context manager."""

    def __init__(self, library: Path) -> None:
        environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(library)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def run(
        self,
        argv: tuple[str, ...],
        fault: Fault | None = None,
        signals: tuple[tuple[float, int], ...] = (),
        *,
        cwd: Path,
    ) -> Ended:
        """Run a command in a directory, with a fault, or with signals after given numbers of seconds."""
        assert self._process.stdin
        assert self._process.stdout
        request = {"argv": argv, "fault": fault.__dict__ if fault else None, "signals": signals, "cwd": str(cwd)}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return Ended(**json.loads(self._process.stdout.readline()))


def serve(library: str) -> None:
    """Answer requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # in a child, until the command begins
    drawn = Path(library).with_name("drawn")
    drawn.mkdir()
    _import(drawn)
    faults = ctypes.CDLL(library)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line), faults)), flush=True)


def _import(drawn: Path) -> None:
    """Import everything before the fork; figures are kept in a folder and drawn once."""
    import matplotlib.pyplot  # noqa: F401
    import scipy.special  # noqa: F401
    import torch

    from expertp.figures import save

    # To draw takes a second and writes no file: the same numbers give the same bytes, which are then written.
    draw = save.render

    def render(name: str, how: Any, data: Any, has_png: bool = True) -> save.Drawing:
        key = repr((name, how.__module__, data.shape, save.to_csv(data.rows()), has_png))
        path = drawn / hashlib.sha256(key.encode()).hexdigest()
        if not path.exists():
            incomplete = path.with_suffix(f".{os.getpid()}")
            incomplete.write_bytes(pickle.dumps(draw(name, how, data, has_png)))
            incomplete.rename(path)
        kept: save.Drawing = pickle.loads(path.read_bytes())
        return kept

    save.render = render  # type: ignore[assignment]

    import expertp.analysis.transfer
    import expertp.cli.main
    import expertp.cli.prepare
    import expertp.cli.report
    import expertp.cli.sweep
    import expertp.cli.train
    import expertp.cli.tune
    import expertp.figures.descent
    import expertp.report.build
    import expertp.report.place
    import expertp.study.sweep
    import expertp.training.train

    torch.set_num_threads(1)
    # A page has a digest of the program's files: all commands get that of the program which was imported.
    expertp.report.place._program()


def _answer(request: Mapping[str, Any], faults: ctypes.CDLL) -> dict[str, Any]:
    streams = [os.memfd_create(name) for name in ("out", "err")]
    pid = os.fork()
    if pid == 0:
        _child(request, streams, faults)
    began = time.monotonic()
    signals = sorted(map(tuple, request["signals"]))
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        now = time.monotonic() - began
        if signals and now >= signals[0][0]:
            os.kill(pid, signals.pop(0)[1])
        if now > SECONDS:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    texts = []
    for stream in streams:
        texts.append(os.pread(stream, 2**20, 0).decode("utf-8", "replace"))
        os.close(stream)
    return {"code": os.waitstatus_to_exitcode(ended[1]), "out": texts[0], "err": texts[1]}


def _child(request: Mapping[str, Any], streams: list[int], faults: ctypes.CDLL) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(streams[0], 1)
    os.dup2(streams[1], 2)
    os.chdir(request["cwd"])
    if fault := request["fault"]:
        texts = (os.fsencode(fault[name]) for name in ("root", "log"))
        root, log = texts
        faults.faults_arm(root, ctypes.c_long(fault["number"]), fault["action"], int(fault["reads"]), log)
    code = 99
    try:
        code = _run(request["argv"])
    except BaseException:
        import traceback

        traceback.print_exc()
    faults.faults_disarm()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(argv: list[str]) -> int:
    from expertp.cli import main
    from expertp.search import tune
    from expertp.study.executors import local
    from expertp.study.sweep import InProcess
    from expertp.training import speed

    # To measure the machine for a tenth of a second writes no file.
    speed.PRODUCT_SECONDS = 0.001
    # Workers are processes that start slowly; here the runs are trained in the process that has the fault.
    local.LocalExecutor = lambda *_: InProcess()  # type: ignore[assignment, misc]
    tune.descend = partial(tune.descend, coordinates=COORDINATES)
    sys.argv = ["expertp", *argv]
    return main.main()


if __name__ == "__main__":
    serve(sys.argv[1])
