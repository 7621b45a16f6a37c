"""The contract of the command line, and its check on one command.

For any input: exit code 0, 1, 2, 3, 130 or 143; no traceback; at most one line that reports an error, and exactly one
with exit code 2, of at most 300 characters; files that are not the program's own never change, those that lie among its
own neither, and a refusal changes no file at all; at most 1 GB of memory; at most 10 seconds where nothing is computed
for long.
"""

import io
import os
import resource
import shutil
import signal
import stat
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import FrameType

import pytest

import expertp
from expertp.cli import watch
from expertp.cli.main import main
from expertp.study.executors import local
from expertp.study.sweep import InProcess
from expertp.util import leases

CODES = {0, 1, 2, 3, 130, 143}
LONGEST_LINE = 300
MEMORY_BYTES = 2**30
SECONDS = 10.0
# A training that a mutation made long gets a SIGTERM, after which it has to save and stop. Only a computation may be
# long: a command that waits or reads for ever gets none, and is too slow.
TRAINING_SECONDS, STOPPING_SECONDS = 2.0, 30.0
LOOK_SECONDS = 0.1
SERVING_SECONDS = 1.0
# Where computations are that may be long: below the package, a file and its functions; none: all of them.
COMPUTATIONS: dict[str, tuple[str, ...]] = {
    "training/loop.py": ("__init__", "step", "evaluate"),
    **{f"theory/{name}.py": () for name in ("compare", "finite", "kernel", "limits", "reduced", "sampling", "sizing")},
}
# What takes longer on a busy machine, but ends: a report draws all figures of a study, curves are fitted to draws of
# noise, and large files are hashed. Their time does not count, up to 30 s.
BOUNDED = {
    "cli/report.py": ("run",),
    "analysis/judging.py": ("judge_curves",),
    "figures/save.py": ("render",),
    "util/files.py": ("file_sha256",),
}
PACKAGE = Path(expertp.__file__).parent
# A run that another process seems to hold is waited for.
LEASE_SECONDS = "0.5"
# Above this size a file counts as unchanged if its size and time are.
LARGEST_HASHED = 2**26


@dataclass(frozen=True)
class Case:
    """One command.

    Args:
        kind: what was mutated.
        argv: the command line without `expertp`.
        own: directories that the command may write to, if it does not refuse.
        trains: whether the command may train or solve. Studies are trained in this process.
        stdin: standard input.
        may_be_large: whether the input may ask for a model that does not fit into memory.
        kept: files and directories in those of `own` that are not the program's: they never change, but may be set
            aside together with the folder that they are in.
        serves: whether the command ends only with a signal, if it does not refuse.
    """

    kind: str
    argv: tuple[str, ...]
    own: tuple[str, ...] = ()
    trains: bool = False
    stdin: bytes = b""
    may_be_large: bool = False
    kept: tuple[str, ...] = ()
    serves: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int | None
    out: str
    err: str
    traceback: str
    seconds: float
    changed: tuple[str, ...]  # files that existed before
    moved: tuple[str, ...]  # those of them that are now in another folder, as they were
    timed_out: bool


class Timeout(BaseException):
    """The command takes too long."""


def run_case(case: Case, root: Path) -> Outcome:
    """Run a command in a directory."""
    before, began = _snapshot(root), time.monotonic()
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "strict", write_through=True) for _ in range(2))
    code: int | None = None
    trace, timed_out = "", False
    with _in_directory(root), _standard_input(case.stdin), _in_this_process(case.trains), warnings.catch_warnings():
        warnings.simplefilter("always")
        with redirect_stdout(out), redirect_stderr(err):
            try:
                with _bounded(case):
                    code = main(case.argv)
            except SystemExit as error:  # --help
                code = error.code if isinstance(error.code, int) else 1
            except Timeout:
                timed_out, trace = True, traceback.format_exc()
            except BaseException:
                trace = traceback.format_exc()
    seconds, after = time.monotonic() - began, _snapshot(root)
    changed = tuple(name for name, state in before.items() if after.get(name) != state)
    new = {(Path(name).name, after[name]) for name in after.keys() - before.keys()}
    moved = tuple(name for name in changed if name not in after and (Path(name).name, before[name]) in new)
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return Outcome(code, texts[0], texts[1], trace, seconds, changed, moved, timed_out)


def violations(case: Case, outcome: Outcome) -> list[str]:
    """Return how a command broke the contract; empty if it kept it."""
    if outcome.timed_out:
        return [f"too slow: more than {SECONDS:g} s\n{outcome.traceback}"]
    if outcome.traceback:
        return [f"traceback\n{outcome.traceback}"]
    found = []
    lines = [line for line in outcome.err.splitlines() if line.startswith("expertp:")]
    errors = [line for line in lines if not line.startswith("expertp: warning:")]
    if outcome.code not in CODES:
        found.append(f"exit code {outcome.code}")
    if len(errors) > 1 or (outcome.code == 2 and len(errors) != 1):
        found.append(f"{len(errors)} error lines with exit code {outcome.code}: {outcome.err[:500]!r}")
    if any(len(line) > LONGEST_LINE for line in lines):
        found.append(f"a line of {max(map(len, lines))} characters")
    if "Traceback" in outcome.out + outcome.err:
        found.append(f"a traceback is printed: {(outcome.out + outcome.err)[:500]!r}")
    printed = outcome.err if case.argv[0] == "generate" else outcome.out + outcome.err  # a model may say anything
    if raw := next((line for line in printed.splitlines() if not line.isprintable()), None):
        found.append(f"control characters are printed: {raw[:300]!r}")
    if any("out of memory" in line for line in errors) and not case.may_be_large:
        found.append("more than 1 GB of memory")
    mine = () if outcome.code == 2 else case.own
    kept = [name for name in outcome.changed if _is_in(name, case.kept) and name not in outcome.moved]
    if lost := [*kept, *(name for name in outcome.changed if not _is_in(name, mine))]:
        found.append(f"changed with exit code {outcome.code}: {lost[:5]}; {outcome.err[-300:]!r}")
    return found


def _is_in(name: str, places: Sequence[str]) -> bool:
    """Return whether a path is one of some places or lies in one.

    >>> _is_in("run/run.json", ["run"]), _is_in("run.yaml", ["run"])
    (True, False)
    """
    return any(name == place or name.startswith(f"{place}/") for place in places)


def _is_inside(frame: FrameType | None, places: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a frame is in functions of some files, or was called by one."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            functions = places.get(path.relative_to(PACKAGE).as_posix())
            if functions is not None and (not functions or frame.f_code.co_name in functions):
                return True
        frame = frame.f_back
    return False


@contextmanager
def _in_this_process(trains: bool) -> Iterator[None]:
    """Train studies in this process, where a worker that waits for ever would not be seen; let no server be nice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "NICE", 0)
        patch.setenv(leases.VARIABLE, LEASE_SECONDS)
        if trains:
            patch.setattr(local, "LocalExecutor", lambda *_arguments, **_options: InProcess())
        yield


@contextmanager
def _in_directory(root: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(root)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _standard_input(content: bytes) -> Iterator[None]:
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(content), "utf-8")
    try:
        yield
    finally:
        sys.stdin = before


@contextmanager
def _bounded(case: Case) -> Iterator[None]:
    """Limit the memory and the time of a command; a training and a server are first asked to stop."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_memory_bytes() + MEMORY_BYTES, hard))
    began = time.monotonic()
    asked, was_lost, is_over, until = not (case.trains or case.serves), False, False, began + SECONDS

    def ring(number: int, frame: FrameType | None) -> None:
        nonlocal asked, was_lost, until
        if is_over:  # the alarm came after the command had ended
            return
        now = time.monotonic()
        if _is_inside(frame, BOUNDED):
            until = max(until, min(now + SECONDS, began + STOPPING_SECONDS))
        asks = not asked and (was_lost or case.serves or _is_inside(frame, COMPUTATIONS))
        if asks:
            asked, was_lost, until = True, False, now + STOPPING_SECONDS
        elif now >= until:
            raise Timeout
        signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS)
        if asks:
            os.kill(os.getpid(), signal.SIGTERM)

    def interrupt(number: int, frame: FrameType | None) -> None:
        """Stop as with Ctrl-C a command that does not listen to SIGTERM: the default handler would end the tests."""
        if is_over:
            return
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            handler(signal.SIGINT, frame)
        raise KeyboardInterrupt

    def ring_again(lost: "sys.UnraisableHookArgs") -> None:
        """Repeat an exception of the handlers that is lost where it was raised, as in a weak reference's callback."""
        nonlocal asked, was_lost
        if not issubclass(lost.exc_type, KeyboardInterrupt | Timeout):
            hook(lost)
        elif not is_over:
            if lost.exc_type is not Timeout:
                asked, was_lost = False, True
            signal.setitimer(signal.ITIMER_REAL, 0.01)

    hook, sys.unraisablehook = sys.unraisablehook, ring_again
    handlers = {signal.SIGALRM: signal.signal(signal.SIGALRM, ring)}
    handlers[signal.SIGTERM] = signal.signal(signal.SIGTERM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, SERVING_SECONDS if case.serves else TRAINING_SECONDS)
    try:
        yield
    finally:
        is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY if hard == -1 else hard, hard))


def _memory_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _snapshot(root: Path) -> dict[str, str]:
    """Return the state of every entry below a directory."""
    return {os.fsencode(path.relative_to(root)).decode("latin-1"): _state(path) for path in root.rglob("*")}


def _state(path: Path) -> str:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"link {os.readlink(path)}"
    if not stat.S_ISREG(status.st_mode):
        return f"kind {stat.S_IFMT(status.st_mode)}"
    if status.st_size > LARGEST_HASHED:
        return f"{status.st_size} {status.st_mtime_ns}"
    return sha256(path.read_bytes()).hexdigest()


def remove(root: Path) -> None:
    """Remove the directory of a case."""
    shutil.rmtree(root, ignore_errors=True)
