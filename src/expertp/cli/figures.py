"""Make a figure of the paper: train what it needs, draw it, and say whether the paper's claim holds here.

NAME is one of `expertp figures list`, or `all`; `page` writes one page about all that were made. Figures of one DIR
share their runs, and what is there is never trained again. The profile `cpu` answers the paper's questions on two
cores, with the folders `novels` and `k8s-docs` of the directory in EXPERTP_CORPORA, or the built-in corpus; `paper` has
the paper's own settings, and needs its GPUs.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

from expertp.cli.arguments import add_workers
from expertp.cli.progress import Reporter
from expertp.cli.signals import stop_signal
from expertp.cli.sweep import SweepView
from expertp.cli.text import columns, size
from expertp.errors import InputError, RunError
from expertp.wording import count, duration

if TYPE_CHECKING:
    from expertp.paper.finding import Finding
    from expertp.paper.profile import ProfileSpec
    from expertp.paper.workshop import Workshop
    from expertp.study_store import Result, StudyDirectory

EXAMPLES = """\
  expertp figures transfer-quarter --profile paper --dry-run
  expertp figures constants-loss --out studies/paper
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("name", metavar="NAME", help="a figure, `list`, `all` or `page`")
    parser.add_argument("--profile", default="cpu", help="cpu or paper (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be trained, and train nothing")
    parser.add_argument("--out", metavar="DIR", default="figures", help="where all goes (default: %(default)s)")
    add_workers(parser)
    parser.add_argument(
        "--cells", metavar="DIR", help="take finished runs from tables, such as docs/results/paper/cells"
    )
    parser.add_argument("--to", metavar="DIR", help="page: copy what is small to DIR, and write the page there")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def run(args: argparse.Namespace) -> int:
    """Do what NAME says."""
    from expertp.paper.catalogue import FINDINGS, find
    from expertp.paper.page import publish, write_page
    from expertp.paper.profile import load_profile

    profile = load_profile(args.profile)
    if args.cells and not Path(args.cells).is_dir():
        raise InputError(f"--cells {args.cells}: no such directory")
    if args.to and args.name != "page":
        raise InputError(f"--to belongs to `expertp figures page`, not to {args.name}")
    if args.name == "list":
        return _list(args, profile)
    if args.name == "page":
        if args.to:
            publish(Path(args.out), Path(args.to))
        print(write_page(Path(args.to or args.out)))
        return 0
    findings = list(FINDINGS.values()) if args.name == "all" else [find(args.name)]
    return _dry_run(args, profile, findings) if args.dry_run else _make(args, profile, findings)


def _list(args: argparse.Namespace, profile: "ProfileSpec") -> int:
    from expertp.paper.catalogue import FINDINGS
    from expertp.paper.cost import cost

    costs = {name: cost(profile, [finding]) for name, finding in FINDINGS.items()}
    if args.json:
        print(
            json.dumps(
                [
                    {"name": each.name, "where": each.where, "claim": each.claim, "runs": costs[name].runs}
                    for name, each in FINDINGS.items()
                ]
            )
        )
        return 0
    rows = [("figure", "in the paper", "runs", "claim")]
    rows += [(name, each.where, str(costs[name].runs), each.claim) for name, each in FINDINGS.items()]
    print(columns(rows))
    return 0


def _dry_run(args: argparse.Namespace, profile: "ProfileSpec", findings: "Sequence[Finding]") -> int:
    from expertp.paper.cost import H100_SHARE, cost
    from expertp.paper.workshop import Workshop

    costs = cost(profile, findings)
    if args.json:
        print(
            json.dumps(
                {
                    "figures": [each.name for each in findings],
                    "profile": profile.name,
                    "assumed": profile.assumed,
                    "runs": [each.to_json() for each in costs.models],
                    "tokens": costs.tokens,
                    "flops": costs.flops,
                    "h100_hours": costs.h100_hours,
                }
            )
        )
        return 0
    print(f"{args.name}, profile {profile.name}: {f'{costs.runs} runs' if costs.runs else 'trains nothing'}")
    workshop = Workshop(Path(args.out), profile)
    notes = dict.fromkeys(workshop.source(study).note for each in findings for study in each.studies)
    print("".join(f"{note}\n" for note in notes if note), end="")
    if costs.models:
        rows = [("model", "parameters", "active", "runs", "tokens a run", "FLOPs in all")]
        for each in costs.models:
            counts = each.model.counts()
            tokens = count(each.tokens // each.runs)
            totals = (count(counts.paper_total), count(counts.paper_active))
            rows.append((size(each.model), *totals, str(each.runs), tokens, f"{each.flops:.2g}"))
        print(f"\n{columns(rows)}\n")
        print(f"in all {count(costs.tokens)} tokens, {costs.flops:.2g} FLOPs; parameters by the paper's formulas")
        print(f"{_hours(costs.h100_hours)} H100-hours at {H100_SHARE:.0%} of its bfloat16 peak (assumed)")
        print(_describe_time(workshop, findings, args.workers))
    if profile.assumed:
        print("assumed, since the paper does not print it:")
        print("\n".join(f"  {each}" for each in profile.assumed))
    return 0


def _describe_time(workshop: "Workshop", findings: "Sequence[Finding]", workers: int) -> str:
    """Say what is still to be trained here, and how long that takes, as far as it can be known."""
    from expertp.data import open_dataset
    from expertp.forecast import forecast

    studies = dict.fromkeys(study for finding in findings for study in finding.studies)
    missing = {study: workshop.missing(study) for study in studies}
    if None in missing.values():
        return "how long it takes here is known once the text is prepared, by the first figure that is made"
    left = {study: runs for study, runs in missing.items() if runs}
    if not left:
        return "all runs are there; nothing would be trained"
    seconds = sum(forecast(runs, open_dataset(workshop.data(study)), workers).seconds for study, runs in left.items())
    n = sum(len(runs) for runs in left.values())
    return f"{n} of them are still to be trained: about {duration(seconds)} with {workers} workers on this machine"


def _hours(hours: float) -> str:
    if hours < 0.01:
        return "less than 0.01"
    return f"about {hours:,.0f}" if hours >= 10 else f"about {hours:.2g}"


def _make(args: argparse.Namespace, profile: "ProfileSpec", findings: "Sequence[Finding]") -> int:
    from expertp.executors.local import LocalExecutor
    from expertp.paper.workshop import Workshop
    from expertp.sweep import run_study

    workshop, made, failed = Workshop(Path(args.out), profile, Path(args.cells) if args.cells else None), [], []
    with Reporter("figures", total=1.0, shows_time=False) as reporter, stop_signal() as stop:

        def train(directory: "StudyDirectory") -> "list[Result]":
            view = SweepView(reporter, args.workers)
            return run_study(directory, LocalExecutor(args.workers), stop.received, view.follow(directory))

        for finding in findings:
            try:
                record = workshop.make(finding, train, stop.received, reporter.line)
            except RunError as error:
                if len(findings) == 1:
                    raise
                reporter.line(str(error))
                failed.append(finding.name)
                continue
            if record is None:
                reporter.line("stopped and saved; run the same command to go on")
                return 128 + stop.number
            made.append(record)
            if not args.json:
                print(f"{finding.name} ({finding.where}): {record['verdict']}")
                table = [columns(record["table"])] if record["table"] else []
                told = (finding.claim, record["number"], record["why"], *table, record["cost"])
                print(indent("\n".join([*told, str(workshop.folder(finding))]), "  "))
    if args.json:
        print(json.dumps(made))
    if failed:
        raise RunError(f"{len(failed)} of {len(findings)} figures were not made: {', '.join(failed)}")
    return 0
