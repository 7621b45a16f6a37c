"""Write commented starter files to a directory.

base.yaml and target.yaml are for `expertp plan`, run.yaml is for `expertp train`, study.yaml for `expertp sweep` and
theory.yaml for `expertp theory`. Existing files are never overwritten.
"""

import argparse
from importlib.resources import files
from pathlib import Path

from expertp.errors import InputError

EXAMPLES = """\
  expertp init
  expertp init my-study
"""

STARTERS = ("base.yaml", "target.yaml", "run.yaml", "study.yaml", "theory.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("directory", nargs="?", default=".", metavar="DIR", help="where to write (default: .)")


def run(args: argparse.Namespace) -> int:
    """Write all files, or none if one of them exists."""
    directory = Path(args.directory)
    if taken := [name for name in STARTERS if (directory / name).exists()]:
        raise InputError(f"{directory / taken[0]} exists; choose another directory, or delete the file")
    directory.mkdir(parents=True, exist_ok=True)
    for name in STARTERS:
        text = (files("expertp") / "configs" / name).read_text(encoding="utf-8")
        (directory / name).write_text(text, encoding="utf-8")
        print(f"wrote {directory / name}")
    print(f"next: expertp plan --base {directory / 'base.yaml'} --target {directory / 'target.yaml'}")
    return 0
