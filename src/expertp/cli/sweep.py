"""Train the runs of a study that are missing, on several workers; run the same command again to resume.

STUDY.yaml says what must exist: a base, axes of larger models, grids and seeds (`expertp init` writes a commented one).
What is there is never trained again, and a larger grid reuses what a smaller one has trained. Runs that fail are tried
once more and then listed. SIGTERM and Ctrl-C save what is under way and stop (exit codes 143 and 130).

With --refine, axes that stay INCONCLUSIVE get the cells that would settle them, within so many minutes.
"""

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from expertp.cli.arguments import add_workers
from expertp.cli.progress import Reporter
from expertp.cli.signals import stop_signal
from expertp.cli.status import models_table
from expertp.cli.text import columns, size
from expertp.cli.verdicts import verdict_table
from expertp.config import load_study
from expertp.errors import InputError
from expertp.study import StudySpec, expand
from expertp.wording import count, duration

if TYPE_CHECKING:
    from expertp.forecast import Forecast
    from expertp.standing import ModelStanding
    from expertp.study_store import Result, StudyDirectory

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
    parser.add_argument("--out", metavar="DIR", help="directory of the study; made or resumed")
    parser.add_argument("--dry-run", action="store_true", help="say what it would cost, and train nothing")
    add_workers(parser)
    parser.add_argument("--refine", metavar="MINUTES", type=float, default=0.0, help="time for settling open axes")


def run(args: argparse.Namespace) -> int:
    """Train and print the verdicts; 1 when a run has failed."""
    study = load_study(args.study_file, args.overrides)
    if not 0 <= args.refine < math.inf:
        raise InputError(f"--refine {args.refine:g}: give minutes, 0 or more")
    if args.refine and study.verdict is None:
        raise InputError(
            "--refine settles verdicts, and the study asks for none (verdict: null); leave one of them out"
        )
    if args.dry_run:
        return dry_run(study, args.out, args.workers)
    if args.out is None:
        raise InputError("--out DIR is missing: where the study goes (or --dry-run, to know what it costs)")
    return sweep(study, args.out, args.workers, args.refine * 60)


def dry_run(study: StudySpec, out: str | None, workers: int) -> int:
    """Print what a study would cost, without what is there already."""
    from expertp.data import open_dataset
    from expertp.forecast import forecast
    from expertp.study_store import DONE, preview_study

    wanted = list(expand(study))
    if out is not None:
        wanted = [each.run for each in preview_study(out, study).results() if each.status not in DONE]
    if not wanted:
        print(f"all {len(expand(study))} runs are there; nothing would be trained")
        return 0
    costs = forecast(wanted, open_dataset(study.train.data), workers)
    print(describe_forecast(study, costs, len(wanted), workers))
    return 0


def describe_forecast(study: StudySpec, costs: "Forecast", runs: int, workers: int) -> str:
    """Return what a study will cost, per model and in all."""
    rows = [("model", "parameters", "active", "runs", "a run", "together")]
    for each in costs.models:
        counts = each.model.counts()
        alone, together = duration(each.seconds), duration(each.seconds * each.runs / workers)
        rows.append((size(each.model), count(counts.total), count(counts.active), str(each.runs), alone, together))
    tokens = study.train.tokens
    return "\n".join(
        [
            f"{study.name}: {runs} runs of {study.train.steps} steps, {count(tokens)} tokens each",
            "",
            columns(rows),
            "",
            f"in all {count(costs.tokens)} tokens, {costs.flops:.2g} FLOPs, {costs.disk_bytes / 2**20:.0f} MiB of disk",
            f"about {duration(costs.seconds)} with {workers} worker{'s' if workers > 1 else ''} on this machine",
        ]
    )


def sweep(study: StudySpec, out: str, workers: int, refine_seconds: float = 0.0) -> int:
    """Train what is missing, show how it goes, and print how it ended."""
    from expertp.executors.local import LocalExecutor
    from expertp.refine import refine
    from expertp.study_store import DONE, open_study
    from expertp.sweep import run_study

    directory, executor = open_study(out, study), LocalExecutor(workers)
    with Reporter("sweep", total=1.0, shows_time=False) as reporter, stop_signal() as stop:
        view = SweepView(reporter, workers)
        results = run_study(directory, executor, stop.received, view.follow(directory))
        if refine_seconds > 0 and study.verdict is not None:
            directory = refine(directory, executor, refine_seconds, reporter.line, stop.received, view.follow)
            results = directory.results()
    print(describe_outcome(directory, results, is_stopped=stop.received()))
    if stop.received():
        return 128 + stop.number
    return 0 if all(result.status in DONE for result in results) else 1


class SweepView:
    """Shows a sweep on the terminal: a table of models over a bar, or heartbeats, and a line when a model is done."""

    def __init__(self, reporter: Reporter, workers: int) -> None:
        self._reporter, self._workers = reporter, workers

    def follow(self, directory: "StudyDirectory") -> "Callable[[], None]":
        """Say what is to be done, and return what shows how far it is; to be called often."""
        from expertp.data import open_dataset
        from expertp.forecast import forecast
        from expertp.standing import Watch
        from expertp.study_store import DONE

        missing = [each.run for each in directory.results() if each.status not in DONE]
        if not missing:
            return lambda: None
        self._reporter.line(f"{len(missing)} of {len(directory.runs)} runs to train; timing a few steps of each model")
        costs = forecast(missing, open_dataset(directory.study.train.data), self._workers)
        self._reporter.line(f"about {duration(costs.seconds)} with {self._workers} workers")
        watch = Watch(directory, {each.model: each.seconds for each in costs.models})
        done = {(each.rules, each.model) for each in watch.look().models if _is_done(each)}
        next_look = 0.0

        def tick() -> None:
            nonlocal next_look
            if time.monotonic() < next_look:
                return
            standing = watch.look()
            next_look = time.monotonic() + LOOK_SECONDS
            for each in standing.models:
                if _is_done(each) and (each.rules, each.model) not in done:
                    done.add((each.rules, each.model))
                    self._reporter.line(_describe_done(each))
            at_once = max(1, min(self._workers, standing.total - standing.ended))
            left = "" if standing.seconds_left is None else f", {duration(standing.seconds_left / at_once)} left"
            bad = "".join(
                f", {standing.counts[each]} {each}" for each in ("diverged", "failed") if standing.counts[each]
            )
            detail = f"{standing.ended}/{standing.total} runs{bad}{left}"
            self._reporter.update(standing.share_done, detail, above=models_table(standing.models) + "\n")

        return tick


def _is_done(model: "ModelStanding") -> bool:
    return model.finished + model.diverged + model.failed == model.total


def _describe_done(model: "ModelStanding") -> str:
    best = "no best log2_lr" if model.best_log2_lr is None else f"best log2_lr {model.best_log2_lr:g}"
    loss = "" if model.loss is None else f", loss {model.loss:.4f}"
    diverged = f", {model.diverged} diverged" if model.diverged else ""
    failed = f", {model.failed} failed" if model.failed else ""
    return f"{size(model.model)} ({model.rules}): {model.total} runs done{diverged}{failed}, {best}{loss}"


def describe_outcome(directory: "StudyDirectory", results: "Sequence[Result]", is_stopped: bool) -> str:
    """Return how a sweep ended: counts, failures, verdicts, and what to do next."""
    counts = Counter(result.status for result in results)
    lines = [f"{len(results)} runs: {', '.join(f'{number} {status}' for status, number in counts.items())}"]
    lines += [
        f"failed: {directory.place(each.identity).name}: {each.error}" for each in results if each.status == "failed"
    ]
    if counts["missing"] + counts["unfinished"] and not is_stopped:
        lines.append("some runs have not ended; run the same command again")
    if is_stopped:
        return "\n".join([*lines, "stopped and saved; run the same command to go on"])
    if directory.study.verdict is not None:
        from expertp.analysis.transfer import judge

        lines += ["", verdict_table(judge(directory.study, results), directory.path)]
    return "\n".join([*lines, "", f"results: {directory.path}/results.csv", f"next: expertp report {directory.path}"])
