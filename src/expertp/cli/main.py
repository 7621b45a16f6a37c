"""`expertp VERB ...`: import the verb's module, parse its arguments, and report bad input as one line.

A verb's module has a docstring (the help text), `EXAMPLES`, `add_arguments(parser)` and `run(args) -> exit code`. It is
imported only for that verb, so `expertp --help` and `expertp plan` do not import torch.
"""

import argparse
import errno
import importlib
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from expertp.errors import InputError, RunError, did_you_mean, one_line, shown
from expertp.util.machine import end_rank, is_out_of_memory, rank_and_ranks, refuse_other_ranks

EXIT_OK, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130
# How long the other ranks let rank 0 speak: torchrun ends all of them as soon as one has ended.
RANK_0_SECONDS = 10.0

VERBS = {
    "demo": "run a complete transfer study in minutes and show its commands",
    "plan": "settings of every parameter group of a large model, from a tuned small one",
    "planner": "write a page that plans while you change sizes, hyperparameters and rules",
    "capacity": "memory, traffic and time of a run on many devices, before you have them",
    "show": "print all settings of a file after overrides and defaults",
    "init": "write commented starter files for plan, train, sweep and theory",
    "prepare": "convert text, JSONL, Parquet or a Hugging Face dataset to token shards",
    "train": "train one model from a run file; the same command resumes",
    "generate": "stream text from a trained run",
    "sweep": "train the missing runs of a transfer study and print its verdict",
    "status": "show the state of a study: finished and active runs, best learning rates, failures",
    "watch": "show a study or a run in the browser while it is trained",
    "tune": "tune the constant multipliers of a base by coordinate descent",
    "coordcheck": "check with short runs that activations and updates keep their size along the axes of a study",
    "paper": "reproduce the findings of the paper: train, draw and judge each claim",
    "report": "write the report of a study from its directory; trains nothing",
    "theory": "solve the mean-field limit of a deep residual MoE and compare it with finite networks",
    "bench": "measure speed side by side: experts, training step, data preparation, sweep, generation",
    "completion": "print a script that completes commands in bash, zsh or fish",
    "doctor": "show the software and hardware that expertp finds on this machine",
}

# Verbs that only read and print: where a launcher starts several processes, each of them may.
READERS = ("plan", "capacity", "show", "status", "completion", "doctor")
# Verbs that compute, write files or serve: several processes of one of them would do the same work, or wait for each
# other. `train` is one run of several processes.
ONE_PROCESS = tuple(verb for verb in VERBS if verb not in (*READERS, "train"))

OS_HINTS = {
    errno.EEXIST: "a file has this name, but a directory is needed; choose another path",
    errno.ENOTDIR: "part of the path is a file; choose another path",
    errno.EACCES: "choose another path or change its permissions",
    errno.EROFS: "the file system is read-only; choose another path",
    errno.ENOSPC: "free some space and run the same command again",
}

USAGE = """\
usage: expertp VERB [arguments]        expertp VERB --help: all options

Tune a small Mixture-of-Experts model, train a large one.

verbs:
{verbs}

examples:
  expertp demo
  expertp plan --base configs/base.yaml --target configs/target.yaml
  expertp sweep configs/study.yaml --out studies/first
"""


class OneLineParser(argparse.ArgumentParser):
    """An argument parser that reports errors as one line with a hint to `--help`."""

    def error(self, message: str) -> NoReturn:
        """Raise the error as `InputError`."""
        # parse_intermixed_args lists the optional overrides as required.
        message = message.replace(", KEY=VALUE", "")
        raise InputError(f"{message} (see '{self.prog} --help')")


def build_parser(verb: str) -> argparse.ArgumentParser:
    """Return the parser of one verb; imports only the module of that verb."""
    module = importlib.import_module(f"expertp.cli.{verb}")
    parser = OneLineParser(
        prog=f"expertp {verb}",
        description=module.__doc__,
        epilog=f"examples:\n{module.EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)
    return parser


def usage() -> str:
    """Return the text that `expertp` prints without arguments: the verbs and three examples."""
    return USAGE.format(verbs="\n".join(f"  {verb:<10} {summary}" for verb, summary in VERBS.items()))


def dispatch(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; raises `InputError` for bad input.

    On a terminal, the next command follows a verb that has ended well.
    """
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return EXIT_OK
    verb, *rest = argv
    if verb == "--version":
        from importlib.metadata import version

        print(f"expertp {version('expertp')}")
        return EXIT_OK
    if verb not in VERBS:
        raise InputError(f"unknown verb {shown(verb)}; {did_you_mean(verb, VERBS)}")
    if verb in ONE_PROCESS:
        refuse_other_ranks(f"`expertp {verb}`")
    code, args = run_verb(verb, rest)
    if code == EXIT_OK:
        from expertp.cli.next import suggest

        sys.stdout.flush()
        suggest(verb, args, rest)
    return code


def run_verb(verb: str, words: Sequence[str]) -> tuple[int, argparse.Namespace]:
    """Run a verb; return its exit code and its parsed arguments."""
    # Intermixed: overrides may come before, between and after flags.
    args = build_parser(verb).parse_intermixed_args(words)
    return args.run(args), args


def _speaks(argv: Sequence[str]) -> bool:
    """Return whether this process prints errors: of several that compute together, rank 0 speaks for all of them.

    Verbs that only read say the same on every rank, and so do their errors.
    """
    rank, ranks = rank_and_ranks()
    return rank == 0 or ranks == 1 or not argv or argv[0] in READERS


def _report(error: str, argv: Sequence[str], is_own: bool = False) -> None:
    """Print an error once: the other ranks leave it to rank 0, and wait until it has ended.

    Args:
        error: the error.
        argv: the command.
        is_own: whether only this rank may know the error. It prints it if rank 0 is still busy after the wait.
    """
    if _speaks(argv) or (not rank_0_ends() and is_own):
        _say(error)


def rank_0_ends() -> bool:
    """Wait until rank 0 has ended; return whether it did. torchrun then sends SIGTERM to all other ranks."""
    has_ended = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        return False
    before = signal.signal(signal.SIGTERM, lambda *_: has_ended.set())
    has_ended.wait(RANK_0_SECONDS)
    signal.signal(signal.SIGTERM, before)
    return has_ended.is_set()


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line without the source line."""
    _say(f"warning: {message}")


def _say(message: str) -> None:
    print(one_line(f"expertp: {message}"), file=sys.stderr)


def _say_interrupted(argv: Sequence[str]) -> int:
    if _speaks(argv):
        _say("interrupted; run the same command to resume")
    return EXIT_INTERRUPTED


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `expertp` command and return its exit code (0 ok, 1 failed, 2 bad input, 130 SIGINT, 143 SIGTERM).

    Without `argv`, it runs the command of this process, which ends when it returns.
    """
    arguments = sys.argv[1:] if argv is None else argv
    warnings.showwarning = _show_warning if _speaks(arguments) else lambda *_, **__: None
    try:
        with _interrupted_once(is_ending=argv is None) as interrupted:
            code = _main(arguments, interrupted)
    except KeyboardInterrupt:
        code = _say_interrupted(arguments)
    if argv is None:
        end_rank(code)
    return code


@contextmanager
def _interrupted_once(is_ending: bool) -> Iterator[threading.Event]:
    """Raise KeyboardInterrupt and set the yielded event at the first SIGINT; the second ends the process at once.

    It ends without a traceback. So does one that gets a SIGINT while Python shuts down, where the process ends after
    the command (`is_ending`).
    """
    interrupted = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        del frame
        signal.signal(number, signal.SIG_DFL)
        interrupted.set()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield interrupted
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if is_ending else before)


def _main(argv: Sequence[str], interrupted: threading.Event) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file name may hold bytes that are not UTF-8
            stream.reconfigure(errors="backslashreplace")
    try:
        code = dispatch(argv)
        sys.stdout.flush()
        return code
    except (InputError, RunError) as error:
        _report(str(error), argv)
        return EXIT_BAD_INPUT if isinstance(error, InputError) else EXIT_FAILED
    except BrokenPipeError:  # `expertp ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except Exception as error:
        if (
            interrupted.is_set()
        ):  # an extension that calls Python may raise an error of its own in place of the interrupt
            return _say_interrupted(argv)
        if is_out_of_memory(error):
            what = "out of memory; use a smaller model, a smaller train.micro_batch or fewer --workers, and run again"
            _report(what, argv, is_own=True)
            return EXIT_FAILED
        if not isinstance(error, OSError):
            raise
        # The second name is that of the file which a temporary one could not replace.
        name = error.filename2 or error.filename
        where = f"{name}: " if name else ""
        hint = OS_HINTS.get(error.errno or 0, "check the path")
        _report(f"{where}{error.strerror or error}; {hint}", argv, is_own=True)
        return EXIT_BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
