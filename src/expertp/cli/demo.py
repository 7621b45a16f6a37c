"""Run a whole transfer study in minutes on the built-in corpus, and show every command that it is made of.

Prepares data, plans the largest model, trains the study, judges it and writes its report. Run again, it only shows what
is there. The study file is DIR/study.yaml; a copy of it is a start for a study of your own.
"""

import argparse
import shlex
from importlib.resources import files
from pathlib import Path

import yaml

from expertp.cli.arguments import add_workers
from expertp.config import load_study
from expertp.errors import InputError
from expertp.spec import ModelSpec, Spec

EXAMPLES = """\
  expertp demo
  expertp demo --out my-demo --workers 1
"""

# What the demo's study is called; one of another name is somebody's own.
NAME = "demo"
INTRODUCTION = """\
A transfer study at demo scale: {models} models of up to {largest:.1f}M parameters, {tokens}k tokens a run. It shows the
machinery; a verdict about so few tokens says nothing about your models. Each command below can be run on its own.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("--out", metavar="DIR", default="demo", help="where everything goes (default: %(default)s)")
    add_workers(parser)


def run(args: argparse.Namespace) -> int:
    """Run the commands one after the other; stop at one that cannot go on, not at one that has found something."""
    from expertp.cli.main import EXIT_FAILED, EXIT_OK, dispatch

    out = Path(args.out)
    _write_files(out)
    print(_introduction(out))
    worst = EXIT_OK
    for command in commands(out, args.workers):
        print(f"$ expertp {shlex.join(command)}", flush=True)
        code = dispatch(command)
        print(flush=True)
        if code > EXIT_FAILED:
            return code
        if command[0] == "sweep":  # what a check or a verdict finds is no failure of the demo, a run that failed is
            worst = code
    print(f"Open {out / 'study' / 'report.html'} in a browser. Next, your own data: expertp prepare --help, and")
    print(f"a copy of {out / 'study.yaml'} with your base, axes and horizon.")
    return worst


def commands(out: Path, workers: int) -> list[list[str]]:
    """Return the commands of the demo."""
    study, data, directory = (str(out / name) for name in ("study.yaml", "data", "study"))
    return [
        ["doctor"],
        ["plan", "--base", str(out / "base.yaml"), "--target", str(out / "target.yaml")],
        ["prepare", "builtin", "--out", data, "--tokenizer", "bpe", "--vocab-size", "512"],
        ["sweep", study, "--out", directory, "--workers", str(workers), f"train.data={data}"],
        [
            "coordcheck",
            study,
            "--out",
            f"{directory}/coordcheck",
            "--steps",
            "40",
            "seeds=[0, 1]",
            f"train.data={data}",
        ],
        ["report", directory],
    ]


def _write_files(out: Path) -> None:
    """Write the study file unless there is one, and its base and largest width as files for `expertp plan`."""
    path = out / "study.yaml"
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        path.write_bytes((files("expertp") / "configs" / "demo.yaml").read_bytes())
    study = load_study(path)
    if study.name != NAME:
        raise InputError(f"{path}: is not the demo's; train it with `expertp sweep`, or give the demo another --out")
    largest = max(study.models(study.axis_names[0]).items())[1]
    (out / "base.yaml").write_text(_as_yaml(model=study.base, hps=study.hps), encoding="utf-8")
    (out / "target.yaml").write_text(_as_yaml(model=largest), encoding="utf-8")


def _as_yaml(**sections: Spec) -> str:
    tree = {name: spec.model_dump(mode="json", exclude_unset=True) for name, spec in sections.items()}
    return str(yaml.safe_dump(tree, sort_keys=False))


def _introduction(out: Path) -> str:
    study = load_study(out / "study.yaml")
    models: set[ModelSpec] = {model for axis in study.axis_names for model in study.models(axis).values()}
    return INTRODUCTION.format(
        models=len(models),
        largest=max(model.counts().total for model in models) / 1e6,
        tokens=round(study.train.tokens / 1e3),
    )
