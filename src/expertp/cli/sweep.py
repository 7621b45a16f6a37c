"""Train the missing runs of a study with several workers; run the same command again to resume.

STUDY.yaml describes the study: a base, axes of larger models, grids and seeds (`expertp init` writes a commented one).
Finished runs are never trained again, and a larger grid reuses the runs of a smaller one. A run that fails is tried a
second time and then listed. SIGTERM and Ctrl-C save the active runs and stop (exit codes 143 and 130).

With --executor slurm, the workers are the tasks of a job array, and the command waits for them. SIGTERM and Ctrl-C
cancel the jobs. A command that is killed, or whose terminal is closed, leaves them running, and the same command waits
for them again. With --executor ray, the workers are tasks of a Ray cluster.

With --until decided, the sweep is adaptive. It begins with few cells at the base and at the largest size of each axis,
looks at the verdicts, and trains the cells that would decide those that are open, until all are decided or --minutes
are over. The verdicts allow for having looked more than once. Runs that are far behind zero-shot are stopped early; a
sweep without --until continues them.
"""

import argparse
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from expertp.cli.arguments import add_workers
from expertp.cli.progress import Reporter
from expertp.cli.signals import stop_signal
from expertp.cli.status import models_table
from expertp.cli.text import text_table
from expertp.cli.verdicts import verdict_table
from expertp.errors import InputError, one_line
from expertp.study.cells import expand, unique_runs
from expertp.study.cost import cost_of_runs, disk_bytes
from expertp.study.load import load_study
from expertp.study.spec import StudySpec
from expertp.util.machine import usable_cores
from expertp.util.text import count, duration, plural

if TYPE_CHECKING:
    from expertp.search.design import Proposal
    from expertp.spec import RunSpec
    from expertp.study.forecast import Forecast
    from expertp.study.progress import ModelProgress
    from expertp.study.store import StudyDirectory
    from expertp.study.sweep import Executor
    from expertp.study.table import StudyTable

EXAMPLES = """\
  expertp sweep configs/study.yaml --out studies/first --until decided --minutes 30
  expertp sweep configs/study.yaml --out studies/first --executor slurm --sbatch='--partition=a100 --gres=gpu:1'
"""

LOOK_SECONDS = 1.0
EXECUTORS = ("local", "slurm", "ray")
# Number of tasks on a cluster, unless --workers sets it.
TASKS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("study_file", metavar="STUDY.yaml", help="the study file")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="base.*, hps.*, train.*, grids.*, axes.*, ..."
    )
    parser.add_argument("--out", metavar="DIR", help="directory of the study; created or resumed")
    parser.add_argument("--dry-run", action="store_true", help="print the cost and train nothing")
    add_workers(parser, elsewhere=f"; {TASKS} tasks with slurm and ray")
    parser.add_argument(
        "--executor", choices=EXECUTORS, default="local", help="where workers run (default: on this machine)"
    )
    parser.add_argument(
        "--sbatch", metavar="OPTIONS", help="options for sbatch, such as '--partition=a100 --time=4:00:00'"
    )
    parser.add_argument("--address", help="of a Ray cluster (default: RAY_ADDRESS, or one for this sweep alone)")
    parser.add_argument(
        "--until", choices=["decided"], help="train only the cells that decide the verdicts (default: all cells)"
    )
    parser.add_argument(
        "--minutes", metavar="M", type=float, help="time for --until decided; active runs are saved (default: no limit)"
    )


def run(args: argparse.Namespace) -> int:
    """Train and print the verdicts; return 1 if a run has failed."""
    study = load_study(args.study_file, args.overrides)
    if args.minutes is not None and not (args.until and 0 < args.minutes < math.inf):
        hint = "give minutes above 0" if args.until else "it goes with --until decided"
        raise InputError(f"--minutes {args.minutes:g}: {hint}")
    if args.until and study.verdict is None:
        raise InputError(
            "--until decided needs verdicts, and the study has none (verdict: null); remove one of the two"
        )
    executor = choose_executor(args, study.processes)
    if args.until:
        study = _with_choice(study, args.out, executor.trains_here)
    if args.out is None and not (args.dry_run and executor.trains_here):
        raise InputError("--out DIR is missing: the directory of the study (or use --dry-run to print the cost)")
    if not executor.trains_here:  # another machine may start in another directory
        study = study.replace(train=study.train.replace(data=os.path.abspath(study.train.data)))
    if args.dry_run:
        return dry_run(study, args.out, executor)
    return train(study, args.out, executor, None if args.minutes is None else args.minutes * 60)


def choose_executor(args: argparse.Namespace, processes: int) -> "Executor":
    """Return the executor of a sweep whose workers have a number of processes; refuse options of other executors."""
    for option, value, name in (("--sbatch", args.sbatch, "slurm"), ("--address", args.address, "ray")):
        if value is not None and args.executor != name:
            raise InputError(f"{option} goes with --executor {name}")
    if args.executor == "slurm":
        from expertp.study.executors.slurm import SlurmExecutor, sbatch_options

        return SlurmExecutor(args.workers or TASKS, sbatch_options(args.sbatch or ""))
    if args.executor == "ray":
        from expertp.study.executors.ray import RayExecutor

        return RayExecutor(args.workers or TASKS, args.address)
    from expertp.study.executors.local import LocalExecutor

    return LocalExecutor(args.workers or max(1, usable_cores() // processes))


def _with_choice(study: StudySpec, out: str | None, trains_here: bool) -> StudySpec:
    """Return a study with the cells that an adaptive sweep has chosen so far, or begins with.

    It begins with all cells where they have been trained, else with the first ones.
    """
    from expertp.search.design import first_choice, whole_choice
    from expertp.study.store import has_study, preview_study, stored_choice

    if study.chosen is not None:
        return study
    if out is None or not has_study(out):
        return first_choice(study)
    if (chosen := stored_choice(out)) is not None:
        return study.replace(chosen=chosen)
    directory = preview_study(out, study, trains_here=trains_here)  # with the refinements of earlier sweeps
    return whole_choice(directory.study) if directory.has_ended() else first_choice(directory.study)


def dry_run(study: StudySpec, out: str | None, executor: "Executor") -> int:
    """Print the cost of the missing runs: at once what follows from their shapes, then the time here, or the jobs."""
    runs, directory = unique_runs(expand(study)), None
    missing = runs
    if out is not None:
        from expertp.study.store import preview_study
        from expertp.study.table import SETTLED

        directory = preview_study(out, study, trains_here=executor.trains_here)
        missing = tuple(each.run for each in directory.results() if each.status not in SETTLED)
    if not missing:
        print(f"all {plural(len(runs), 'run')} are there; nothing would be trained")
        return 0
    print(describe_cost(study, missing, executor.workers), flush=True)
    if directory is not None and not executor.trains_here:
        print(executor.describe(directory))
        return 0

    from expertp.data import open_dataset
    from expertp.study.forecast import forecast

    times = forecast(missing, open_dataset(study.train.data), executor.workers)
    print(describe_time(times, executor.workers))
    return 0


def describe_cost(study: StudySpec, runs: "Sequence[RunSpec]", workers: int) -> str:
    """Return the cost of runs that follows from the shapes of their models."""
    costs, disk = cost_of_runs(runs), disk_bytes(runs, workers)
    rows = [("model", "parameters", "active", "runs", "FLOPs per run", "FLOPs in all")]
    for each in costs.models:
        counts, flops = each.model.counts(), (f"{each.flops / each.runs:.2g}", f"{each.flops:.2g}")
        rows.append((each.model.label, count(counts.total), count(counts.active), str(each.runs), *flops))
    steps = f"{plural(study.train.steps, 'step')}, {count(study.train.tokens)} tokens each"
    return "\n".join(
        [
            f"{study.name}: {plural(len(runs), 'run')} of {steps}",
            "",
            text_table(rows),
            "",
            f"total: {count(costs.tokens)} tokens, {costs.flops:.2g} FLOPs, {disk / 2**20:,.0f} MiB of disk",
        ]
    )


def describe_time(times: "Forecast", workers: int) -> str:
    """Return the training time of runs on this machine, and what it is based on."""
    rows = [("model", "runs", "time per run", "time in all", "")]
    for each in times.models:
        alone, together = duration(each.seconds), duration(each.seconds * each.runs / workers)
        rows.append((each.model.label, str(each.runs), alone, together, "timed" if each.is_timed else "estimated"))
    total = f"about {duration(times.seconds)} with {plural(workers, 'worker')} on this machine"
    return "\n".join(["", text_table(rows), "", f"{total}, {times.basis}"])


def train(study: StudySpec, out: str, executor: "Executor", seconds: float | None = None) -> int:
    """Train the missing runs, show the progress, and print the outcome; `seconds` is the time of an adaptive study."""
    from expertp.search.design import sweep_until_decided
    from expertp.study.store import open_study
    from expertp.study.sweep import sweep
    from expertp.study.table import SETTLED
    from expertp.training.trackers import check_tracker

    for name in study.trackers:
        check_tracker(name)
    directory = open_study(out, study, trains_here=executor.trains_here)
    with Reporter("sweep", total=1.0, shows_time=False) as reporter, stop_signal() as stop:
        view = SweepView(reporter, executor.workers, executor.trains_here)
        if study.chosen is None:
            table = sweep(directory, executor, stop.received, view.follow(directory))
        else:
            budget = math.inf if seconds is None else seconds
            directory = sweep_until_decided(directory, executor, budget, view.show_proposal, stop.received, view.follow)
            table = directory.table()
    directory = directory.settled()
    print(describe_outcome(directory, table, is_stopped=stop.received()))
    if study.trackers and study.verdict is not None and not stop.received():
        from expertp.analysis.transfer import judge
        from expertp.report.tracking import track_verdicts

        track_verdicts(directory, judge(table))
    if stop.received():
        return 128 + stop.number
    allowed = SETTLED if seconds is None else (*SETTLED, "unfinished", "missing")  # the time may end within a run
    return 0 if all(result.status in allowed for result in table.results) else 1


class SweepView:
    """Shows a sweep on the terminal: a table of models above a progress bar, and a line for each model that is done."""

    def __init__(self, reporter: Reporter, workers: int, times_models: bool = True) -> None:
        self._reporter, self._workers, self._times_models = reporter, workers, times_models

    def show_proposal(self, proposal: "Proposal", is_chosen: bool) -> None:
        """Print cells that would decide a verdict, and whether they fit into the budget."""
        cells, minutes = proposal.choice, proposal.seconds / self._workers / 60
        values = ", ".join(f"{value:g}" for value in cells.values)
        self._reporter.line(
            f"{'next' if is_chosen else 'over budget'}: {cells.axis}, {cells.hp}: {values} with "
            f"{plural(len(cells.seeds), 'seed')} ({plural(proposal.runs, 'more run', 'more runs')}, about "
            f"{minutes:.1f} min)"
        )
        self._reporter.line(f"  because {cells.why}")

    def follow(self, directory: "StudyDirectory") -> "Callable[[], None]":
        """Print the number of missing runs, and return a function that shows the progress; call it often."""
        from expertp.data import open_dataset
        from expertp.study.forecast import forecast
        from expertp.study.progress import ProgressWatch
        from expertp.study.table import SETTLED

        missing = [each.run for each in directory.results() if each.status not in SETTLED]
        if not missing:
            return lambda: None
        self._reporter.line(f"{len(missing)} of {plural(len(directory.runs), 'run')} to train")
        timed = {}
        if self._times_models:
            costs = forecast(missing, open_dataset(directory.study.train.data), self._workers)
            timed = {each.model: each.seconds for each in costs.models}
            workers = plural(self._workers, "worker")
            self._reporter.line(f"about {duration(costs.seconds)} with {workers}, {costs.basis}")
        watch = ProgressWatch(directory, timed)
        done = {(each.arm, each.model) for each in watch.look().models if each.ended == each.total}
        next_look = 0.0

        def tick() -> None:
            nonlocal next_look
            if time.monotonic() < next_look:
                return
            watch.directory = watch.directory.settled()
            progress = watch.look()
            next_look = time.monotonic() + LOOK_SECONDS
            for each in progress.models:
                if each.ended == each.total and (each.arm, each.model) not in done:
                    done.add((each.arm, each.model))
                    self._reporter.line(_describe_done(each))
            at_once = max(1, min(self._workers, progress.total - progress.ended))
            left = "" if progress.seconds_left is None else f", {duration(progress.seconds_left / at_once)} left"
            detail = f"{progress.ended}/{progress.total} runs{_bad(progress.counts)}{left}"
            self._reporter.update(progress.share_done, detail, above=models_table(progress.models) + "\n")

        return tick


def _describe_done(model: "ModelProgress") -> str:
    best = "no best log2_lr" if model.best_log2_lr is None else f"best log2_lr {model.best_log2_lr:g}"
    loss = "" if model.loss is None else f", loss {model.loss:.4f}"
    return (
        f"{model.model.label} ({model.arm.name}): {plural(model.total, 'run')} done{_bad(model.counts)}, {best}{loss}"
    )


def _bad(counts: "Mapping[str, int]") -> str:
    return "".join(f", {counts[each]} {each}" for each in ("diverged", "stopped", "failed", "damaged") if counts[each])


def describe_outcome(directory: "StudyDirectory", table: "StudyTable", is_stopped: bool) -> str:
    """Return the outcome of a sweep as text: counts, failures and verdicts."""
    results = table.results
    counts = Counter(result.status for result in results)
    lines = [f"{plural(len(results), 'run')}: {', '.join(f'{number} {status}' for status, number in counts.items())}"]
    bad = [each for each in results if each.status in ("failed", "damaged")]
    # The error of a damaged run begins with the path of the file.
    names = {
        each.identity: f"{directory.place(each.identity).name}: " if each.status == "failed" else "" for each in bad
    }
    lines += [f"{each.status}: {names[each.identity]}{one_line(each.error)}" for each in bad]
    if counts["missing"] + counts["unfinished"] and not is_stopped:
        lines.append("some runs have not ended; run the same command again")
    if is_stopped:
        return "\n".join([*lines, "stopped and saved; run the same command to continue"])
    if directory.study.verdict is not None:
        from expertp.analysis.transfer import judge

        lines += ["", verdict_table(judge(table), directory.path)]
    return "\n".join([*lines, "", f"results: {directory.path}/results.csv"])
