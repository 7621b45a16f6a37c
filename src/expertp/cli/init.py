"""Write commented starter files to a directory: all of them, or none if one exists or cannot be written.

base.yaml and target.yaml are for `expertp plan`, run.yaml is for `expertp train`, study.yaml for `expertp sweep` and
theory.yaml for `expertp theory`; README.md says what to do next. Existing files are never overwritten. The files expect
prepared data in prepared/, beside the directory.
"""

import argparse
import os
from importlib.resources import files
from pathlib import Path

from expertp.errors import InputError, printable
from expertp.study.load import load_study
from expertp.util.text import command

EXAMPLES = """\
  expertp init
  expertp init my-model
"""

DIRECTORY = "configs"
GUIDE = "README.md"
STARTERS = ("base.yaml", "target.yaml", "run.yaml", "study.yaml", "theory.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument(
        "directory", nargs="?", default=DIRECTORY, metavar="DIR", help=f"where to write (default: {DIRECTORY})"
    )


def run(args: argparse.Namespace) -> int:
    """Write the files."""
    directory = Path(args.directory)
    print(f"wrote to {printable(str(directory))}: {', '.join(path.name for path in write_starters(directory))}")
    return 0


def guide(directory: Path) -> str:
    """Return a page with five commands for the starter files of a directory."""
    study = load_study(directory / "study.yaml")
    data, vocabulary = os.path.relpath(study.train.data), study.base.vocab_size
    out = Path("studies", study.name)
    base, target, run = (directory / name for name in ("base.yaml", "target.yaml", "run.yaml"))
    on_data = (f"train.data={data}", f"model.vocab_size={vocabulary}")
    steps = [
        (command("plan", "--base", base, "--target", target), "settings of the large model, from the small one"),
        (
            command("prepare", "builtin", "--out", data, "--tokenizer", "bpe", "--vocab-size", vocabulary),
            "tokens to train on; a folder of your own text goes in the place of `builtin`",
        ),
        (
            command("sweep", directory / "study.yaml", "--out", out, "--until", "decided", "--minutes", 30),
            "does the learning rate hold on this data?",
        ),
        (command("report", out, "--open"), "verdicts and figures as one page"),
        (command("train", run, "--out", "out/first-run", *on_data), "one run; the same command resumes it"),
    ]
    lines = [f"{number}. `{line}`: {what}" for number, (line, what) in enumerate(steps, start=1)]
    return "\n".join(["# What to do next", "", *lines, ""])


def write_starters(directory: Path) -> list[Path]:
    """Write all starter files, and a guide unless there is a README; after an error, nothing is left behind."""
    folders = [each for each in (directory, *directory.parents) if not each.exists()]
    written: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in STARTERS:
            content = (files("expertp") / "configs" / name).read_bytes()
            with (directory / name).open("xb") as file:
                written.append(directory / name)
                file.write(content)
        if not (directory / GUIDE).exists():
            with (directory / GUIDE).open("x", encoding="utf-8") as page:
                written.append(directory / GUIDE)
                page.write(guide(directory))
    except BaseException as error:
        for path in written:
            path.unlink()
        for folder in folders:
            if folder.is_dir():
                folder.rmdir()
        if isinstance(error, FileExistsError) and directory.is_dir():
            raise InputError(f"{error.filename} exists; choose another directory, or delete the file") from None
        raise
    return written
