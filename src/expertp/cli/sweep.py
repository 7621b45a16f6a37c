"""Train the missing runs of a study with several workers; run the same command again to resume.

STUDY.yaml describes the study: a base, axes of larger models, grids and seeds (`expertp init` writes a commented one).
Finished runs are never trained again, and a larger grid reuses the runs of a smaller one. A run that fails is tried a
second time and then listed. SIGTERM and Ctrl-C save the active runs and stop (exit codes 143 and 130).

With --refine, verdicts that are INCONCLUSIVE get additional cells that could decide them, within the given time.
"""

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from expertp.cli.arguments import add_workers
from expertp.cli.progress import Reporter
from expertp.cli.signals import stop_signal
from expertp.cli.status import models_table
from expertp.cli.text import columns, size
from expertp.cli.verdicts import verdict_table
from expertp.errors import InputError
from expertp.study.cells import expand, unique_runs
from expertp.study.load import load_study
from expertp.study.spec import StudySpec
from expertp.util.text import count, duration

if TYPE_CHECKING:
    from expertp.search.design import Proposal
    from expertp.study.forecast import Forecast
    from expertp.study.progress import ModelProgress
    from expertp.study.store import StudyDirectory
    from expertp.study.table import StudyTable

EXAMPLES = """\
  expertp sweep configs/study.yaml --dry-run
  expertp sweep configs/study.yaml --out studies/first --workers 2 --refine 30
"""

LOOK_SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("study_file", metavar="STUDY.yaml", help="the study file")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="base.*, hps.*, train.*, grids.*, axes.*, ..."
    )
    parser.add_argument("--out", metavar="DIR", help="directory of the study; created or resumed")
    parser.add_argument("--dry-run", action="store_true", help="print the cost and train nothing")
    add_workers(parser)
    parser.add_argument(
        "--refine",
        metavar="MINUTES",
        type=float,
        default=0.0,
        help="time for deciding INCONCLUSIVE verdicts (default: 0)",
    )


def run(args: argparse.Namespace) -> int:
    """Train and print the verdicts; return 1 if a run has failed."""
    study = load_study(args.study_file, args.overrides)
    if not 0 <= args.refine < math.inf:
        raise InputError(f"--refine {args.refine:g}: give minutes, 0 or more")
    if args.refine and study.verdict is None:
        raise InputError("--refine needs verdicts, and the study has none (verdict: null); remove one of the two")
    if args.dry_run:
        return dry_run(study, args.out, args.workers)
    if args.out is None:
        raise InputError("--out DIR is missing: the directory of the study (or use --dry-run to print the cost)")
    return train(study, args.out, args.workers, args.refine * 60)


def dry_run(study: StudySpec, out: str | None, workers: int) -> int:
    """Print the cost of the runs that are missing."""
    from expertp.data import open_dataset
    from expertp.study.forecast import forecast
    from expertp.study.store import preview_study
    from expertp.study.table import DONE

    runs = unique_runs(expand(study))
    missing = runs
    if out is not None:
        missing = tuple(each.run for each in preview_study(out, study).results() if each.status not in DONE)
    if not missing:
        print(f"all {len(runs)} runs are there; nothing would be trained")
        return 0
    costs = forecast(missing, open_dataset(study.train.data), workers)
    print(describe_forecast(study, costs, len(missing), workers))
    return 0


def describe_forecast(study: StudySpec, costs: "Forecast", runs: int, workers: int) -> str:
    """Return the cost of a study as text, per model and in total."""
    rows = [("model", "parameters", "active", "runs", "time per run", "total time")]
    for each in costs.models:
        counts = each.model.counts()
        alone, together = duration(each.seconds), duration(each.seconds * each.runs / workers)
        rows.append((size(each.model), count(counts.total), count(counts.active), str(each.runs), alone, together))
    return "\n".join(
        [
            f"{study.name}: {runs} runs of {study.train.steps} steps, {count(study.train.tokens)} tokens each",
            "",
            columns(rows),
            "",
            f"total: {count(costs.tokens)} tokens, {costs.flops:.2g} FLOPs, {costs.disk_bytes / 2**20:.0f} MiB of disk",
            f"about {duration(costs.seconds)} with {workers} worker{'s' if workers > 1 else ''} on this machine",
        ]
    )


def train(study: StudySpec, out: str, workers: int, refine_seconds: float = 0.0) -> int:
    """Train the missing runs, show the progress, and print the outcome."""
    from expertp.search.design import refine
    from expertp.study.executors.local import LocalExecutor
    from expertp.study.store import open_study
    from expertp.study.sweep import sweep
    from expertp.study.table import DONE

    directory, executor = open_study(out, study), LocalExecutor(workers)
    with Reporter("sweep", total=1.0, shows_time=False) as reporter, stop_signal() as stop:
        view = SweepView(reporter, workers)
        table = sweep(directory, executor, stop.received, view.follow(directory))
        if refine_seconds > 0 and study.verdict is not None:
            directory = refine(directory, executor, refine_seconds, view.show_proposal, stop.received, view.follow)
            table = directory.table()
    print(describe_outcome(directory, table, is_stopped=stop.received()))
    if stop.received():
        return 128 + stop.number
    return 0 if all(result.status in DONE for result in table.results) else 1


class SweepView:
    """Shows a sweep on the terminal: a table of models above a progress bar, and a line for each model that is done."""

    def __init__(self, reporter: Reporter, workers: int) -> None:
        self._reporter, self._workers = reporter, workers

    def show_proposal(self, proposal: "Proposal", is_chosen: bool) -> None:
        """Print cells that would decide a verdict, and whether they fit into the budget."""
        cells, minutes = proposal.refinement, proposal.seconds / self._workers / 60
        added = [f"{cells.hp} {', '.join(f'{value:g}' for value in cells.values)}"] if cells.values else []
        added += [f"seeds {', '.join(map(str, cells.seeds))}"] if cells.seeds else []
        self._reporter.line(
            f"{'adding' if is_chosen else 'over budget'}: {cells.axis}, {cells.hp}: {' and '.join(added)} "
            f"({proposal.runs} runs, about {minutes:.1f} min)"
        )
        self._reporter.line(f"  because {cells.why}")

    def follow(self, directory: "StudyDirectory") -> "Callable[[], None]":
        """Print the number of missing runs, and return a function that shows the progress; call it often."""
        from expertp.data import open_dataset
        from expertp.study.forecast import forecast
        from expertp.study.progress import ProgressWatch
        from expertp.study.table import DONE

        missing = [each.run for each in directory.results() if each.status not in DONE]
        if not missing:
            return lambda: None
        self._reporter.line(f"{len(missing)} of {len(directory.runs)} runs to train; timing a few steps of each model")
        costs = forecast(missing, open_dataset(directory.study.train.data), self._workers)
        self._reporter.line(f"about {duration(costs.seconds)} with {self._workers} workers")
        watch = ProgressWatch(directory, {each.model: each.seconds for each in costs.models})
        done = {(each.arm, each.model) for each in watch.look().models if each.ended == each.total}
        next_look = 0.0

        def tick() -> None:
            nonlocal next_look
            if time.monotonic() < next_look:
                return
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
    return f"{size(model.model)} ({model.arm.name}): {model.total} runs done{_bad(model.counts)}, {best}{loss}"


def _bad(counts: "Mapping[str, int]") -> str:
    return "".join(f", {counts[each]} {each}" for each in ("diverged", "failed") if counts[each])


def describe_outcome(directory: "StudyDirectory", table: "StudyTable", is_stopped: bool) -> str:
    """Return the outcome of a sweep as text: counts, failures, verdicts, and the next command."""
    results = table.results
    counts = Counter(result.status for result in results)
    lines = [f"{len(results)} runs: {', '.join(f'{number} {status}' for status, number in counts.items())}"]
    lines += [
        f"failed: {directory.place(each.identity).name}: {each.error}" for each in results if each.status == "failed"
    ]
    if counts["missing"] + counts["unfinished"] and not is_stopped:
        lines.append("some runs have not ended; run the same command again")
    if is_stopped:
        return "\n".join([*lines, "stopped and saved; run the same command to continue"])
    if directory.study.verdict is not None:
        from expertp.analysis.transfer import judge

        lines += ["", verdict_table(judge(table), directory.path)]
    return "\n".join([*lines, "", f"results: {directory.path}/results.csv", f"next: expertp report {directory.path}"])
