"""`expertp VERB ...`: finds the verb's module, parses its arguments, turns bad input into one line and exit code 2.

A verb's module is imported only when that verb is asked for, so `expertp --help` and `expertp plan` never
import torch. It has a docstring (the help text), `EXAMPLES`, `add_arguments(parser)` and `run(args) -> exit code`.
"""

import argparse
import errno
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from expertp.errors import InputError, RunError, did_you_mean

EXIT_OK, EXIT_FAILED, EXIT_BAD_INPUT = 0, 1, 2

VERBS = {
    "demo": "a whole transfer study in minutes, with the commands that it is made of",
    "plan": "what every parameter group of a large model should be set to, from a small one",
    "init": "write commented starter files: plan, run, study and theory",
    "prepare": "turn text, JSONL, Parquet or a Hugging Face dataset into token shards",
    "train": "train one model from a run file; run it again to resume",
    "generate": "stream text from a trained run",
    "sweep": "train the runs of a transfer study that are missing, and judge it",
    "status": "how a study stands: runs done and under way, best learning rates, failures",
    "tune": "constant multipliers of a base by coordinate descent over seeds",
    "coordcheck": "check on short runs that activations and updates keep their size along a study's axes",
    "figures": "the paper's figures, one by one: train, draw, and say whether its claim holds",
    "report": "one page that shows what a study found, from its directory; never trains",
    "theory": "solve the mean-field limit of a deep residual MoE, and set finite networks beside it",
    "bench": "measure speed side by side: experts, a training step, preparing data, a sweep",
    "doctor": "what this machine has, and what of it expertp will use",
}

OS_HINTS = {
    errno.EEXIST: "a file is there and a directory is needed; choose another path",
    errno.ENOTDIR: "part of the path is a file; choose another path",
    errno.EACCES: "choose another path or change its permissions",
    errno.EROFS: "nothing can be written there; choose another path",
    errno.ENOSPC: "make room and run the same command again",
}

USAGE = """\
usage: expertp VERB [arguments]        expertp VERB --help tells more

Tune a small Mixture-of-Experts model, train a large one.

verbs:
{verbs}

examples:
  expertp demo
  expertp plan --base configs/base.yaml --target configs/target.yaml
  expertp sweep configs/study.yaml --out studies/first
"""


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line that points to `--help`."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would have printed under a usage text."""
        # parse_intermixed_args counts optional overrides among what is required.
        message = message.replace(", KEY=VALUE", "")
        raise InputError(f"{message} (see '{self.prog} --help')")


def build_parser(verb: str) -> argparse.ArgumentParser:
    """Return the parser of one verb, importing that verb's module only."""
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
    """Return what bare `expertp` prints: the verbs and three examples to copy."""
    return USAGE.format(verbs="\n".join(f"  {verb:<10} {summary}" for verb, summary in VERBS.items()))


def dispatch(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; bad input raises `InputError`."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return EXIT_OK
    verb, *rest = argv
    if verb == "--version":
        from importlib.metadata import version

        print(f"expertp {version('expertp')}")
        return EXIT_OK
    if verb not in VERBS:
        raise InputError(f"unknown verb '{verb}'; {did_you_mean(verb, VERBS)}")
    # Intermixed: overrides may stand before, between and after flags.
    args = build_parser(verb).parse_intermixed_args(rest)
    code: int = args.run(args)
    return code


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line, without the source line that Python adds."""
    print(f"expertp: warning: {message}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `expertp` command; returns the exit code (0 ok, 1 failed, 2 bad input, 143 SIGTERM)."""
    warnings.showwarning = _show_warning
    try:
        code = dispatch(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except (InputError, RunError) as error:
        print(f"expertp: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_BAD_INPUT if isinstance(error, InputError) else EXIT_FAILED
    except BrokenPipeError:  # `expertp ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        hint = OS_HINTS.get(error.errno or 0, "check the path")
        print(f"expertp: {where}{error.strerror or error}; {hint}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print("expertp: interrupted; the same command goes on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
