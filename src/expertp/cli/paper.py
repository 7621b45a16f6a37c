"""Make the findings of the paper: train the missing runs, draw the figures, and say whether each claim holds here.

  expertp paper list          all findings, with the number of runs of each
  expertp paper make NAME     one finding
  expertp paper all           all findings
  expertp paper page          one page about the findings that were made

Findings in one DIR share their runs, and finished runs are never trained again. The profile `cpu` asks the paper's
questions at a size that two cores can train, on the folder `k8s-docs` of the directory that EXPERTP_CORPORA names, and
on the built-in corpus. The profile `paper` has the paper's own settings, and needs GPUs.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

from expertp.cli.arguments import add_workers
from expertp.cli.text import text_table
from expertp.errors import InputError, RunError, did_you_mean
from expertp.util.text import count, duration, plural

if TYPE_CHECKING:
    from expertp.paper.finding import Finding, FindingRecord
    from expertp.paper.profile import ProfileSpec
    from expertp.paper.store import PaperDirectory
    from expertp.study.store import StudyDirectory

# An adaptive study begins with some runs, and adds others.
AT_LEAST = "at least "
ACTIONS = ("list", "make", "all", "page")
EXAMPLES = """\
  expertp paper make transfer-quarter --profile paper --dry-run
  expertp paper all --out studies/paper --results docs/results/paper/results
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("action", metavar="ACTION", help="list, make, all or page")
    parser.add_argument("name", metavar="NAME", nargs="?", help="make: the finding")
    parser.add_argument("--profile", default="cpu", help="cpu or paper (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="print what would be trained, and train nothing")
    parser.add_argument("--out", metavar="DIR", default="paper", help="directory of all files (default: %(default)s)")
    add_workers(parser)
    parser.add_argument(
        "--results", metavar="DIR", help="take finished runs from tables, such as docs/results/paper/results"
    )
    parser.add_argument("--to", metavar="DIR", help="page: copy the small files to DIR, and write the page there")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def run(args: argparse.Namespace) -> int:
    """Do what ACTION says."""
    from expertp.paper.listing import check_profile, listed_findings

    if args.action not in ACTIONS:
        is_finding = args.action in [finding.name for finding in listed_findings()]
        hint = f"`expertp paper make {args.action}` makes it" if is_finding else did_you_mean(args.action, ACTIONS)
        raise InputError(f"no action '{args.action}'; {hint}")
    if (args.action == "make") != (args.name is not None):
        raise InputError(
            "make needs the NAME of a finding; `expertp paper list` lists them"
            if args.action == "make"
            else f"{args.action} takes no NAME, but '{args.name}' was given"
        )
    check_profile(args.profile)
    if args.results and not Path(args.results).is_dir():
        raise InputError(f"--results {args.results}: no such directory")
    if args.to and args.action != "page":
        raise InputError(f"--to belongs to `expertp paper page`, not to {args.action}")
    if args.action == "list":
        return _list(args)
    if args.action == "page":
        return _page(args)

    from expertp.paper.catalogue import FINDINGS, find
    from expertp.paper.profile import load_profile

    profile = load_profile(args.profile)
    findings = FINDINGS if args.action == "all" else (find(args.name),)
    return _dry_run(args, profile, findings) if args.dry_run else _make(args, profile, findings)


def _list(args: argparse.Namespace) -> int:
    from expertp.paper.listing import listed_findings

    findings, profile = listed_findings(), args.profile
    if args.json:
        trees = [
            {
                "name": each.name,
                "where": each.where,
                "claim": each.claim,
                "runs": each.runs[profile],
                "is_adaptive": each.is_adaptive[profile],
            }
            for each in findings
        ]
        print(json.dumps(trees))
        return 0
    rows = [
        (each.name, each.where, f"{AT_LEAST if each.is_adaptive[profile] else ''}{each.runs[profile]}", each.claim)
        for each in findings
    ]
    print(text_table([("finding", "in the paper", "runs", "claim"), *rows]))
    return 0


def _page(args: argparse.Namespace) -> int:
    from expertp.paper.page import write_page
    from expertp.paper.store import publish

    if args.to:
        publish(Path(args.out), Path(args.to))
    print(write_page(Path(args.to or args.out)))
    return 0


def _dry_run(args: argparse.Namespace, profile: "ProfileSpec", findings: "Sequence[Finding]") -> int:
    from expertp.capacity.devices import EFFICIENCY
    from expertp.paper.cost import cost, h100_hours
    from expertp.paper.store import PaperDirectory

    costs = cost(profile, findings)
    is_adaptive = any(profile.is_adaptive(study.name) for each in findings for study in each.studies)
    if args.json:
        tree = {
            "findings": [each.name for each in findings],
            "profile": profile.name,
            "assumed": profile.assumed,
            "runs": [each.to_dict() for each in costs.models],
            "is_adaptive": is_adaptive,
            "tokens": costs.tokens,
            "flops": costs.flops,
            "h100_hours": h100_hours(costs),
        }
        print(json.dumps(tree))
        return 0
    at_least = AT_LEAST if is_adaptive else ""
    runs = f"{at_least}{plural(costs.runs, 'run')}" if costs.runs else "trains nothing"
    print(f"{args.name or args.action}, profile {profile.name}: {runs}")
    if is_adaptive:
        print(
            f"adaptive studies add runs until their verdicts are decided, for at most {profile.minutes:g} minutes each"
        )
    directory = PaperDirectory(Path(args.out), profile)
    notes = dict.fromkeys(directory.source(study.name).note for each in findings for study in each.studies)
    print("".join(f"{note}\n" for note in notes if note), end="")
    if costs.models:
        rows = [("model", "parameters", "active", "runs", "tokens per run", "FLOPs in all")]
        for each in costs.models:
            counts = each.model.counts()
            tokens = count(each.tokens // each.runs)
            totals = (count(counts.paper_total), count(counts.paper_active))
            rows.append((each.model.label, *totals, str(each.runs), tokens, f"{each.flops:.2g}"))
        print(f"\n{text_table(rows)}\n")
        in_all = f"in all {at_least}{count(costs.tokens)} tokens, {costs.flops:.2g} FLOPs"
        print(f"{in_all}; parameters by the paper's formulas")
        print(f"{_hours(h100_hours(costs))} H100-hours at {EFFICIENCY:.0%} of its bfloat16 peak (assumed)")
        print(_describe_time(directory, findings, args.workers))
    if profile.assumed:
        print("assumed, since the paper does not print it:")
        print("\n".join(f"  {each}" for each in profile.assumed))
    return 0


def _describe_time(directory: "PaperDirectory", findings: "Sequence[Finding]", workers: int) -> str:
    """Return how many runs are still to be trained here, and how long they take, where this can be known."""
    from expertp.data import open_dataset
    from expertp.study.forecast import CALIBRATION_SECONDS, forecast

    studies = dict.fromkeys(study.name for finding in findings for study in finding.studies)
    missing = {study: directory.missing(study) for study in studies}
    if None in missing.values():
        return "the time on this machine is known once the text is prepared, which the first finding does"
    left = {study: runs for study, runs in missing.items() if runs}
    if not left:
        return "all runs are finished; nothing would be trained"
    limit = CALIBRATION_SECONDS / len(left)
    seconds = sum(
        forecast(runs, open_dataset(directory.data(study)), workers, limit).seconds for study, runs in left.items()
    )
    n = sum(len(runs) for runs in left.values())
    time = f"about {duration(seconds)} with {plural(workers, 'worker')} on this machine"
    return f"{plural(n, 'run')} of them {'is' if n == 1 else 'are'} still to be trained: {time}"


def _hours(hours: float) -> str:
    if hours < 0.01:
        return "less than 0.01"
    return f"about {hours:,.0f}" if hours >= 10 else f"about {hours:.2g}"


def _make(args: argparse.Namespace, profile: "ProfileSpec", findings: "Sequence[Finding]") -> int:
    from expertp.cli.progress import Reporter
    from expertp.cli.signals import stop_signal
    from expertp.cli.sweep import SweepView
    from expertp.paper.store import PaperDirectory, training_seconds
    from expertp.search.design import sweep_until_decided
    from expertp.study.executors.local import LocalExecutor
    from expertp.study.sweep import sweep

    directory = PaperDirectory(Path(args.out), profile, Path(args.results) if args.results else None)
    made: list[FindingRecord] = []
    failed: list[str] = []
    with Reporter("paper", total=1.0, shows_time=False) as reporter, stop_signal() as stop:

        def train(study: "StudyDirectory") -> "StudyDirectory":
            view, executor = SweepView(reporter, args.workers), LocalExecutor(args.workers)
            # With published results, the cells are those that were published.
            if study.study.chosen is not None and profile.minutes is not None and directory.results is None:
                left = 60 * profile.minutes - training_seconds(study) / args.workers
                return sweep_until_decided(study, executor, left, view.show_proposal, stop.received, view.follow)
            sweep(study, executor, stop.received, view.follow(study))
            return study

        for finding in findings:
            try:
                record = directory.make(finding, train, stop.received, reporter.line)
            except RunError as error:
                if len(findings) == 1:
                    raise
                reporter.line(str(error))
                failed.append(finding.name)
                continue
            if record is None:
                reporter.line("stopped and saved; the same command continues")
                return 128 + stop.number
            made.append(record)
            if not args.json:
                table = [text_table(record.table)] if record.table else []
                by_paper = f"by the paper's criterion: {record.paper_answer}"
                measured = [record.claim, by_paper, record.number, record.why, *table]
                lines = [*measured, record.cost, str(directory.folder(finding))]
                print(f"{record.name} ({record.where}): {record.answer}")
                print(indent("\n".join(lines), "  "))
    if args.json:
        print(json.dumps([each.to_dict() for each in made]))
    if failed:
        raise RunError(f"{len(failed)} of {plural(len(findings), 'finding')} were not made: {', '.join(failed)}")
    return 0
