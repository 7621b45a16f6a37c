"""Say how a study stands, at any time and from any terminal: runs done and under way, best learning rates, failures.

The time left is for as many workers as are at it now, from what runs have taken so far.
"""

import argparse
import json
import math
from typing import TYPE_CHECKING, Any

from expertp.cli.text import columns, size
from expertp.wording import duration

if TYPE_CHECKING:
    from expertp.standing import ModelStanding, Standing
    from expertp.study_store import StudyDirectory

EXAMPLES = """\
  expertp status studies/first
  expertp status studies/first --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("directory", metavar="DIR", help="directory of a study, made by `expertp sweep`")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Look and print; 1 when a run has failed."""
    from expertp.standing import Watch
    from expertp.study_store import read_study

    directory = read_study(args.directory)
    standing = Watch(directory).look()
    if args.json:
        print(json.dumps(as_tree(directory, standing), indent=2))
    else:
        print(describe(directory, standing))
    return 1 if standing.failed else 0


def as_tree(directory: "StudyDirectory", standing: "Standing") -> dict[str, Any]:
    """Return what `--json` prints; docs/study.md has the schema."""
    return {
        "study": directory.study.name,
        "runs": {"total": standing.total, **standing.counts},
        "share_done": round(standing.share_done, 4),
        "seconds_left": _time_left(standing),
        "models": [
            {
                "rules": each.rules,
                "n_embd": each.model.n_embd,
                "n_layer": each.model.n_layer,
                "n_exp": each.model.n_exp,
                "n_act": each.model.n_act,
                "alpha_ffn": each.model.alpha_ffn,
                "total": each.total,
                "finished": each.finished,
                "diverged": each.diverged,
                "failed": each.failed,
                "best_log2_lr": each.best_log2_lr,
                "loss": each.loss,
            }
            for each in standing.models
        ],
        "running": [
            {"run": directory.place(each.identity).name, "pid": each.pid, "step": each.step, "steps": each.steps}
            for each in standing.running
        ],
        "failed": [{"run": directory.place(each.identity).name, "error": each.error} for each in standing.failed],
    }


def describe(directory: "StudyDirectory", standing: "Standing") -> str:
    """Return what people read."""
    counts = ", ".join(f"{number} {status}" for status, number in standing.counts.items() if number)
    left = _time_left(standing)
    time_left = "" if not left else f", about {duration(left)} left"
    lines = [f"{directory.study.name}: {standing.ended} of {standing.total} runs have ended ({counts}){time_left}"]
    lines += ["", models_table(standing.models)]
    if standing.running:
        lines += ["", "under way:"]
        lines += [
            f"  {directory.place(each.identity).name}  step {each.step}/{each.steps}" for each in standing.running
        ]
    if standing.failed:
        lines += ["", "failed, twice each; the next `expertp sweep` tries them again:"]
        lines += [f"  {directory.place(each.identity).name}  {each.error}" for each in standing.failed]
    if standing.ended == standing.total:
        lines += ["", f"next: expertp report {directory.path}"]
    return "\n".join(lines)


def models_table(models: "tuple[ModelStanding, ...]") -> str:
    """Return how the runs of each model stand, with its best learning rate so far."""
    rows = [("rules", "model", "runs", "diverged", "best log2_lr", "median loss")]
    for each in models:
        best = "-" if each.best_log2_lr is None else f"{each.best_log2_lr:g}"
        loss = "-" if each.loss is None else f"{each.loss:.4f}"
        done = f"{each.finished + each.diverged + each.failed}/{each.total}"
        rows.append((each.rules, size(each.model), done, str(each.diverged or "-"), best, loss))
    return columns(rows)


def _time_left(standing: "Standing") -> float | None:
    """Return seconds until the end with the workers that are at it, or with one when none is."""
    if standing.seconds_left is None:
        return None
    return math.ceil(standing.seconds_left / max(1, len(standing.running)))
