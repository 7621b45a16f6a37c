"""Tune constant multipliers of a base model by coordinate descent over seeds; run the same command again to resume.

STUDY.yaml gives base, data, horizon, seeds, and the initial learning rate and init std. All constants start at one.
Every coordinate (global lr and init std, then lr and init of every family of parameters) is tried in both directions.
A change is taken if the loss falls significantly over the same seeds, or if training becomes more stable at no cost,
and nothing becomes less stable. More stable means that fewer seeds diverge, at the learning rate or an octave above, or
that expert loads are more even. DIR/preset.yaml has the result as the `hps:` of a study, DIR/path.csv all candidates,
and DIR/path.svg a figure of them.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from expertp.cli.arguments import add_workers, at_least_one
from expertp.cli.progress import Reporter
from expertp.cli.signals import stop_signal
from expertp.cli.sweep import SweepView
from expertp.cli.text import text_table
from expertp.errors import InputError
from expertp.spec import BaseHPs
from expertp.study.load import load_study
from expertp.study.spec import StudySpec
from expertp.util.files import write_atomically
from expertp.util.text import duration, plural

if TYPE_CHECKING:
    from expertp.search.tune import Trial

EXAMPLES = """\
  expertp tune configs/study.yaml --out studies/constants 'seeds=[0,1,2,3,4]'
  expertp tune configs/study.yaml --out studies/constants --passes 2 'seeds=[0,1,2,3,4]'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("study_file", metavar="STUDY.yaml", help="the study file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="base.*, hps.*, train.*, seeds=[...]")
    parser.add_argument("--out", metavar="DIR", help="directory of the runs; created or resumed")
    parser.add_argument(
        "--passes", metavar="N", type=at_least_one, default=1, help="maximum number of passes (default: 1)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the cost of a pass and train nothing")
    add_workers(parser)
    parser.add_argument("--json", action="store_true", help="print path and result as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Tune and print the path."""
    from expertp.search.tune import tuning_study

    study = tuning_study(load_study(args.study_file, args.overrides))
    if args.dry_run:
        print(_describe_cost(study, args.workers))
        return 0
    if args.out is None:
        raise InputError("--out DIR is missing: the directory of the runs (or use --dry-run to print the cost)")
    return _tune(study, Path(args.out), args)


def _tune(study: StudySpec, out: Path, args: argparse.Namespace) -> int:
    from expertp.figures import descent
    from expertp.figures.save import render
    from expertp.search.tune import Interrupted, TrainedCandidates, descend
    from expertp.study.executors.local import LocalExecutor

    path: list[Trial] = []
    with Reporter("tune", total=1.0, shows_time=False) as reporter, stop_signal() as stop:
        view = SweepView(reporter, args.workers)
        candidates = TrainedCandidates(study, out, LocalExecutor(args.workers), stop.received, view.follow)
        try:
            for trial in descend(study.hps, candidates.measure, args.passes):
                path.append(trial)
                reporter.line(_line(trial))
        except Interrupted:
            reporter.line("stopped and saved; run the same command to continue")
            return 128 + stop.number
    taken = [trial for trial in path if trial.is_taken]
    best, shown = taken[-1], descent.data(path)
    render("path", descent.draw, shown).write(out)
    write_atomically(out / "preset.yaml", preset(best.hps, study).encode())
    if args.json:
        print(json.dumps({"hps": best.hps.to_dict(), "path": shown.rows()}))
        return 0
    tried = f"{plural(len(path), 'candidate')}, {len(taken) - 1} taken"
    print(f"{tried}; mean loss over {plural(len(study.seeds), 'seed')}:\n")
    print(_table(taken))
    print(f"\n{preset(best.hps, study)}\nwritten: {out / 'preset.yaml'}, {out / 'path.csv'}, {out / 'path.svg'}")
    return 0


def preset(hps: BaseHPs, study: StudySpec) -> str:
    """Return tuned hyperparameters as the `hps:` section of a study with the same base."""
    from expertp.plan import named_constants
    from expertp.search.tune import GLOBAL, ratio, value_of

    lines = [f"# Tuned by `expertp tune` at {study.base.describe()},", f"# {plural(len(study.seeds), 'seed')}."]
    lines += ["hps:", *(f"  {name}: {ratio(value_of(hps, name))}" for name in GLOBAL)]
    constants = named_constants(hps.constants)
    if not constants:
        return "\n".join([*lines, "  constants: ones", ""])
    lines += ["  constants:", *(f"    {name}: {ratio(value)}" for name, value in constants.items())]
    return "\n".join([*lines, ""])


def _table(taken: "Sequence[Trial]") -> str:
    from expertp.search.tune import ratio

    rows = [("taken", "loss", "change", "diverged at lr, 2 lr", "max |Load - kappa| at lr, 2 lr")]
    for each in taken:
        what = f"{each.coordinate} {ratio(each.value)}" if each.coordinate else "all ones"
        change = str(each.change) if each.coordinate else ""
        outcomes = [outcome for outcome in (each.outcome, each.above) if outcome]
        diverged = ", ".join(str(outcome.diverged) for outcome in outcomes)
        loads = ", ".join(f"{outcome.load:.3f}" for outcome in outcomes)
        rows.append((what, f"{each.loss:.4f}", change, diverged, loads))
    return text_table(rows)


def _line(trial: "Trial") -> str:
    from expertp.search.tune import ratio

    if not trial.coordinate:
        return f"all ones: loss {trial.loss:.4f}, max |Load - kappa| {trial.outcome.load:.3f}"
    return f"{'*' if trial.is_taken else ' '} {trial.coordinate} {ratio(trial.value)}: {trial.change}, {trial.why}"


def _describe_cost(study: StudySpec, workers: int) -> str:
    """Return the minimum cost of one pass as text: both directions of every coordinate, no change taken."""
    from expertp.data import open_dataset
    from expertp.search.tune import COORDINATES
    from expertp.study.cells import expand
    from expertp.study.forecast import forecast

    seeds = len(study.seeds)
    runs = (2 * len(COORDINATES) + 2) * seeds
    seconds = forecast([expand(study)[0].run], open_dataset(study.train.data)).seconds * runs / workers
    return (
        f"{study.name}: {len(COORDINATES)} coordinates, {plural(seeds, 'seed')}: at least {runs} runs per pass, about "
        f"{duration(seconds)} with {plural(workers, 'worker')}; each change that is taken adds {2 * seeds} to "
        f"{3 * seeds} runs"
    )
