"""Write commented starter files to a directory: all of them, or none if one exists or cannot be written.

base.yaml and target.yaml are for `expertp plan`, run.yaml is for `expertp train`, study.yaml for `expertp sweep` and
theory.yaml for `expertp theory`. Existing files are never overwritten. The files expect prepared data in prepared/,
beside the directory.
"""

import argparse
import os
from importlib.resources import files
from pathlib import Path

from expertp.errors import InputError
from expertp.study.load import load_study
from expertp.util.text import command

EXAMPLES = """\
  expertp init
  expertp init my-model
"""

DIRECTORY = "configs"
STARTERS = ("base.yaml", "target.yaml", "run.yaml", "study.yaml", "theory.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument(
        "directory", nargs="?", default=DIRECTORY, metavar="DIR", help=f"where to write (default: {DIRECTORY})"
    )


def run(args: argparse.Namespace) -> int:
    """Write the files, and print the next commands."""
    directory = Path(args.directory)
    write_starters(directory)
    study = load_study(directory / "study.yaml")
    shards = ("--tokenizer", "bpe", "--vocab-size", study.base.vocab_size)
    print(f"wrote to {directory}: {', '.join(STARTERS)}\n\nnext:")
    print(f"  {command('plan', '--base', directory / 'base.yaml', '--target', directory / 'target.yaml')}")
    print(f"  {command('prepare', 'builtin', '--out', os.path.relpath(study.train.data), *shards)}")
    print(f"  {command('sweep', directory / 'study.yaml', '--dry-run')}")
    return 0


def train_command(data: Path, *overrides: str) -> str:
    """Return the command that trains the starter run on prepared data, after `expertp init` if it has no file yet."""
    run_file = Path(DIRECTORY, "run.yaml")
    first = "" if run_file.exists() else f"{command('init')} && "
    return first + command("train", run_file, "--out", Path("out", data.name), f"train.data={data}", *overrides)


def write_starters(directory: Path) -> None:
    """Write all starter files; after an error, nothing is left behind."""
    folders = [each for each in (directory, *directory.parents) if not each.exists()]
    written: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in STARTERS:
            content = (files("expertp") / "configs" / name).read_bytes()
            with (directory / name).open("xb") as file:
                written.append(directory / name)
                file.write(content)
    except BaseException as error:
        for path in written:
            path.unlink()
        for folder in folders:
            if folder.is_dir():
                folder.rmdir()
        if isinstance(error, FileExistsError) and directory.is_dir():
            raise InputError(f"{error.filename} exists; choose another directory, or delete the file") from None
        raise
