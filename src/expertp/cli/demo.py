"""Plan a model of billions of parameters, then show in minutes on the built-in corpus why the plan can be trusted.

The demo prints every command that it runs: it plans a large model, prepares data, trains a small transfer study, judges
it and writes a report. A second call trains nothing and prints the same results. The study file is DIR/study.yaml; copy
it to start your own study.
"""

import argparse
import io
import os
import shlex
import textwrap
from contextlib import redirect_stdout
from importlib.resources import files
from pathlib import Path

from expertp.cli.arguments import add_workers
from expertp.cli.text import output_width
from expertp.errors import InputError
from expertp.spec import Spec
from expertp.study.cells import axis_names, sizes
from expertp.study.load import load_study
from expertp.study.spec import StudySpec
from expertp.util.plain_yaml import to_yaml

EXAMPLES = """\
  expertp demo
  expertp demo --out my-demo --workers 1
"""

# Name of the demo's study; a study of another name belongs to the user.
NAME = "demo"
INTRODUCTION = """\
A transfer study at demo scale: {models} models of up to {largest:.1f}M parameters, {tokens}k tokens per run. It says
little about long training. Each command below can be run on its own.
"""
# Time for deciding the verdicts; on two cores, three to five minutes are enough as a rule.
MINUTES = "6"
# Changes to the base that make the model of the first plan: billions of parameters at the base's sparsity.
LARGE = {"n_embd": 4096, "n_layer": 32, "n_exp": 32, "n_act": 8}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("--out", metavar="DIR", default="demo", help="directory of all files (default: %(default)s)")
    add_workers(parser)


def run(args: argparse.Namespace) -> int:
    """Run the commands in order; stop at an error, not at a check or verdict that fails."""
    from expertp.cli.main import EXIT_FAILED, EXIT_OK, run_verb

    out = Path(args.out)
    study = _write_files(out)
    print(_introduction(study))
    worst = EXIT_OK
    for command in commands(out, args.workers, study.train.data):
        print(f"$ expertp {shlex.join(command)}", flush=True)
        code = _in_one_line(command) if command[0] == "coordcheck" else run_verb(command[0], command[1:])[0]
        print(flush=True)
        if code > EXIT_FAILED:
            return code
        if command[0] == "sweep":  # a failed run is a failure of the demo; a failed check or verdict is not
            worst = code
    _print_summary(out / "study")
    print(f"Open {out / 'study' / 'report.html'} in a browser. For a study of your own, prepare your data (see")
    print(f"expertp prepare --help) and set base, axes and horizon in a copy of {out / 'study.yaml'}.")
    return worst


def _in_one_line(command: list[str]) -> int:
    """Run a command and print the last line of its output."""
    from expertp.cli.main import run_verb

    with redirect_stdout(io.StringIO()) as text:
        code, _ = run_verb(command[0], command[1:])
    print(next((line for line in reversed(text.getvalue().splitlines()) if line.strip()), ""))
    return code


def _print_summary(directory: Path) -> None:
    """Print what the study shows in a few sentences."""
    from expertp.analysis.transfer import judge
    from expertp.report.summary import summarize_study
    from expertp.study.store import read_study

    if not (directory / "study.json").exists():
        return
    for sentence in summarize_study(judge(read_study(directory).table())):
        print(textwrap.fill(sentence, output_width()))
    print()


def commands(out: Path, workers: int, data_of_study: str) -> list[list[str]]:
    """Return the commands of the demo; a study file that names other data, as in earlier versions, is overridden."""
    study, data, directory = (str(out / name) for name in ("study.yaml", "data", "study"))
    on_data = [] if data_of_study == os.path.abspath(data) else [f"train.data={data}"]
    return [
        ["plan", "--base", str(out / "base.yaml"), "--target", str(out / "target.yaml")],
        ["prepare", "builtin", "--out", data, "--tokenizer", "bpe", "--vocab-size", "512"],
        [
            "sweep",
            study,
            "--out",
            directory,
            "--until",
            "decided",
            "--minutes",
            MINUTES,
            "--workers",
            str(workers),
            *on_data,
        ],
        ["coordcheck", study, "--out", f"{directory}/coordcheck", "--steps", "40", "seeds=[0, 1]", *on_data],
        ["report", directory],
    ]


def _write_files(out: Path) -> StudySpec:
    """Write the study file unless it exists, and its base and a large model as files for `expertp plan`."""
    path = out / "study.yaml"
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        path.write_bytes((files("expertp") / "configs" / "demo.yaml").read_bytes())
    study = load_study(path)
    if study.name != NAME:
        raise InputError(
            f"{path}: is not the demo's; train it with `expertp sweep`, or choose another --out for the demo"
        )
    (out / "base.yaml").write_text(_as_yaml(model=study.base, hps=study.hps), encoding="utf-8")
    (out / "target.yaml").write_text(_as_yaml(model=study.base.replace(**LARGE)), encoding="utf-8")
    return study


def _as_yaml(**sections: Spec) -> str:
    return to_yaml({name: spec.model_dump(mode="json", exclude_unset=True) for name, spec in sections.items()})


def _introduction(study: StudySpec) -> str:
    models = {size.model for axis in axis_names(study) for size in sizes(study, axis)}
    return INTRODUCTION.format(
        models=len(models),
        largest=max(model.counts().total for model in models) / 1e6,
        tokens=round(study.train.tokens / 1e3),
    )
