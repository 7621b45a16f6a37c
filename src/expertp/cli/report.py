"""Write the report of a study, DIR/report.html, from the contents of its directory. Nothing is trained, and a report
that is up to date is not written again.

The verb also writes DIR/figures/ (every figure as .svg, .png and .csv) and DIR/verdict.json. With --out NAME.html they
are NAME-figures/ and NAME-verdict.json beside it, and nothing is written to DIR. The page names missing results and the
commands that produce them.
"""

import argparse
import json
from pathlib import Path

from expertp.cli.browser import show_page
from expertp.cli.verdicts import verdict_table

EXAMPLES = """\
  expertp report studies/first --open
  expertp report studies/first --strict --out pages/first.html
"""

EXIT_VERDICT_FAIL = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("directory", metavar="DIR", help="directory of the study, as written by `expertp sweep --out`")
    parser.add_argument("--out", metavar="FILE", type=Path, help="path of the page (default: DIR/report.html)")
    parser.add_argument("--force", action="store_true", help="write the report also if it is up to date")
    parser.add_argument("--open", action="store_true", help="show the page in the default browser")
    parser.add_argument(
        "--strict", action="store_true", help="exit with 3 when a verdict of the study's own arm is FAILS (default: 0)"
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts and the page's path as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Write the page and print the verdicts."""
    from expertp.analysis.transfer import judge
    from expertp.report.build import is_current, write_report
    from expertp.study.store import read_study

    directory = read_study(args.directory)
    path: Path = args.out or directory.path / "report.html"
    if not args.force and is_current(directory, args.out):
        verdict, word = judge(directory.table()), "report (up to date)"
    else:
        verdict, word = write_report(directory, args.out).verdict, "report"
    if args.json:
        print(json.dumps({"report": str(path), **verdict.to_dict()}))
    else:
        print(verdict_table(verdict, directory.path), end="\n\n")
        print(f"{word}: {path}")
    if args.open:
        show_page(path)
    has_failed = any(each.conclusion == "FAILS" for each in verdict.axes)
    return EXIT_VERDICT_FAIL if args.strict and has_failed else 0
