"""Print the progress of a study, from any terminal: finished and active runs, best learning rates, failures.

The time left is estimated from finished runs, for the workers that are active now. An adaptive sweep also has the cells
that it would train next, why, and what they cost.
"""

import argparse
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from expertp.cli.text import text_table
from expertp.errors import one_line, printable
from expertp.util.text import duration, plural

if TYPE_CHECKING:
    from expertp.search.design import Proposal
    from expertp.study.executors.slurm_jobs import Jobs
    from expertp.study.progress import ModelProgress, StudyProgress
    from expertp.study.spec import ChoiceSpec
    from expertp.study.store import StudyDirectory

EXAMPLES = """\
  expertp status studies/first
  expertp status studies/first --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("directory", metavar="DIR", help="directory of a study, created by `expertp sweep`")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the progress; return 1 if a run has failed or is damaged."""
    from expertp.study.executors.slurm_jobs import jobs_of
    from expertp.study.progress import ProgressWatch
    from expertp.study.store import read_study

    directory = read_study(args.directory)
    progress, planned, jobs = ProgressWatch(directory).look(), next_cells_of(directory), jobs_of(directory)
    if args.json:
        print(json.dumps(to_dict(directory, progress, planned, jobs), indent=2))
    else:
        print(describe(directory, progress, planned, jobs))
    return 1 if progress.failed or progress.damaged else 0


def next_cells_of(directory: "StudyDirectory") -> "Sequence[Proposal]":
    """Return the cells that an adaptive sweep would train next; other sweeps train all cells."""
    if directory.study.chosen is None or directory.study.verdict is None:
        return ()
    from expertp.analysis.transfer import judge  # numpy and scipy: only where they are needed
    from expertp.search.design import next_cells

    table = directory.table()
    return next_cells(table, judge(table))


def to_dict(
    directory: "StudyDirectory",
    progress: "StudyProgress",
    planned: "Sequence[Proposal]" = (),
    jobs: "Jobs | None" = None,
) -> dict[str, Any]:
    """Return the tree that `--json` prints; docs/study.md has the schema."""
    return {
        "study": directory.study.name,
        "runs": {"total": progress.total, **progress.counts},
        "share_done": round(progress.share_done, 4),
        "seconds_left": _time_left(progress),
        "models": [
            {
                "arm": each.arm.name,
                **{name: getattr(each.model, name) for name in ("n_embd", "n_layer", "n_exp", "n_act", "alpha_ffn")},
                "total": each.total,
                **each.counts,
                "best_log2_lr": each.best_log2_lr,
                "loss": each.loss,
            }
            for each in progress.models
        ],
        "chosen": None if directory.study.chosen is None else [each.to_dict() for each in directory.study.chosen],
        "next": [
            {
                **each.choice.to_dict(),
                "runs": each.runs,
                "seconds": None if math.isnan(each.seconds) else math.ceil(each.seconds),
            }
            for each in planned
        ],
        "running": [
            {
                "run": directory.place(each.identity).name,
                **{name: getattr(each.holder, name) for name in ("host", "pid")},
                **{name: getattr(each, name) for name in ("step", "steps")},
            }
            for each in progress.running
        ],
        "jobs": None if jobs is None else {"slurm": jobs.job, "states": jobs.states},
        "failed": [{"run": directory.place(each.identity).name, "error": each.error} for each in progress.failed],
        "damaged": [{"run": directory.place(each.identity).name, "error": each.error} for each in progress.damaged],
    }


def describe(
    directory: "StudyDirectory",
    progress: "StudyProgress",
    planned: "Sequence[Proposal]" = (),
    jobs: "Jobs | None" = None,
) -> str:
    """Return the progress as text."""
    counts = ", ".join(f"{number} {status}" for status, number in progress.counts.items() if number)
    left = _time_left(progress)
    time_left = "" if not left else f", about {duration(left)} left"
    name = printable(directory.study.name)
    lines = [f"{name}: {progress.ended} of {progress.total} runs have ended ({counts}){time_left}"]
    lines += ["", models_table(progress.models)]
    if directory.study.chosen is not None:
        lines += ["", "cells that the adaptive sweep has chosen:", *map(_describe_choice, directory.study.chosen)]
    if planned:
        lines += ["", "cells that it would train next:", *map(_describe_next, planned)]
    if progress.running:
        rows = [
            (directory.place(each.identity).name, f"{each.step}/{each.steps}", each.holder.host)
            for each in progress.running
        ]
        lines += ["", text_table([("active run", "step", "on"), *rows])]
    if jobs is not None and progress.ended < progress.total:
        lines += ["", _describe_jobs(jobs)]
    if progress.failed:
        lines += ["", "failed twice; the next `expertp sweep` tries them again:"]
        lines += [f"  {directory.place(each.identity).name}  {one_line(each.error)}" for each in progress.failed]
    if progress.damaged:
        lines += ["", "damaged; `expertp sweep` does not train them until they are restored or removed:"]
        lines += [f"  {one_line(each.error)}" for each in progress.damaged]
    if progress.ended == progress.total and planned:
        lines += ["", "some verdicts are open"]
    elif progress.ended < progress.total and not progress.running and not (jobs and jobs.states):
        lines += ["", "no worker is active"]
    return "\n".join(lines)


def _describe_jobs(jobs: "Jobs") -> str:
    if jobs.states is None:
        return f"SLURM job {jobs.job}: squeue does not answer here"
    states = ", ".join(f"{number} {state.lower()}" for state, number in jobs.states.items())
    return f"SLURM job {jobs.job}: {states or 'has ended'}"


def _describe_choice(choice: "ChoiceSpec") -> str:
    return f"  {_cells(choice)}, look {choice.looks}: {one_line(choice.why)}"


def _describe_next(proposal: "Proposal") -> str:
    time = "" if math.isnan(proposal.seconds) else f", about {duration(proposal.seconds)} on one worker"
    cost = f"{plural(proposal.runs, 'more run', 'more runs')}{time}"
    return f"  {_cells(proposal.choice)} ({cost}), because {one_line(proposal.choice.why)}"


def _cells(choice: "ChoiceSpec") -> str:
    values = ", ".join(f"{value:g}" for value in choice.values)
    return f"{printable(choice.axis)}, {choice.hp}: {values} with {plural(len(choice.seeds), 'seed')}"


def models_table(models: "tuple[ModelProgress, ...]") -> str:
    """Return a table of models: finished runs and the best learning rate so far."""
    has_stopped = any(each.counts["stopped"] for each in models)
    rows: list[tuple[str, ...]]
    rows = [("arm", "model", "runs", "diverged", *(["stopped"] if has_stopped else []), "best log2_lr", "median loss")]
    for each in models:
        best = "-" if each.best_log2_lr is None else f"{each.best_log2_lr:g}"
        loss = "-" if each.loss is None else f"{each.loss:.4f}"
        statuses = ("diverged", "stopped") if has_stopped else ("diverged",)
        counts = [str(each.counts[status] or "-") for status in statuses]
        rows.append((printable(each.arm.name), each.model.label, f"{each.ended}/{each.total}", *counts, best, loss))
    return text_table(rows)


def _time_left(progress: "StudyProgress") -> float | None:
    """Return the seconds left with the active workers, or with one if none is active."""
    if progress.seconds_left is None:
        return None
    return math.ceil(progress.seconds_left / max(1, len(progress.running)))
