"""Check with short runs that activations and their updates keep their size along every axis of a study.

Each model of the study trains for a few steps with the base's hyperparameters, on the study's data and batch, at the
full learning rate from the first step on. The output has log-log slopes against scale, with the standard error over
seeds and the expected slope in brackets, for the size of activations at init and after training steps, the effective
update (W_t - W_0) x_t and the propagated update W_0 (x_t - x_0). The exit code is 1 if a slope fails or a run diverges.
Transfer requires a passing check, but a passing check does not prove transfer.

DIR gets coordcheck.csv (all measurements), coordcheck.json (slopes and verdicts) and the figure coordcheck.svg, .png.
The same command again trains nothing and reads the stored measurements.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from expertp.cli.progress import Reporter
from expertp.cli.text import text_table
from expertp.errors import InputError
from expertp.spec import RuleSetName
from expertp.study.load import load_study
from expertp.util.files import exclusive, file_sha256, write_atomically
from expertp.util.records import read_record
from expertp.util.text import duration, plural

if TYPE_CHECKING:
    from expertp.coordcheck.measuring import Measurement, Probed, ProbedRun
    from expertp.coordcheck.records import CheckRecord
    from expertp.coordcheck.slopes import CoordinateCheck, Slope
    from expertp.data import Dataset

EXAMPLES = """\
  expertp coordcheck configs/study.yaml --out out/coordcheck
  expertp coordcheck configs/study.yaml --out out/coordcheck-sp --rules sp --steps 40 seeds=[0,1]
"""
CSV_FILE, JSON_FILE, FIGURE = "coordcheck.csv", "coordcheck.json", "coordcheck"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("study_file", metavar="STUDY.yaml", help="the study file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="base.*, hps.*, train.*, axes.*, seeds")
    parser.add_argument("--out", required=True, metavar="DIR", help="directory of the check; created or read")
    parser.add_argument("--rules", choices=get_args(RuleSetName), help="rule set to check (default: the study's own)")
    parser.add_argument("--steps", type=int, default=60, metavar="N", help="optimizer steps per run (default: 60)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Measure or read the check and print its slopes; return 1 if it fails."""
    study = load_study(args.study_file, args.overrides)
    if args.steps < 3:
        raise InputError(f"--steps {args.steps} is too few to measure slopes of training; give 3 or more, such as 60")

    from expertp.coordcheck.measuring import check_input, check_key, probed_runs, read_csv, to_csv
    from expertp.coordcheck.records import CheckRecord
    from expertp.coordcheck.slopes import analyse, settled_sizes
    from expertp.data import open_dataset
    from expertp.figures import coordcheck as figure
    from expertp.figures.save import render

    rules: RuleSetName = args.rules or study.hps.rules
    dataset = open_dataset(study.train.data)
    runs = probed_runs(study, rules)
    check_input(runs, dataset)
    key, out = check_key(runs, args.steps, dataset.content_hash), Path(args.out)
    with exclusive(out, busy=f"{out}: another process uses this directory; wait for it, or choose another --out"):
        if (before := _stored(out, key)) and (out / CSV_FILE).exists():
            table = read_csv(out / CSV_FILE, before.csv_sha256, f"remove {out / JSON_FILE} to measure again")
        else:
            table = _measure(runs, dataset, args.steps)
            write_atomically(out / CSV_FILE, to_csv(table).encode())
        check = analyse(table, study, rules, args.steps)
        record = CheckRecord.of(check, key, study, args.steps, file_sha256(out / CSV_FILE)).to_dict()
        shown = figure.data(check, settled_sizes(table, args.steps))
        drawing = render(FIGURE, figure.draw, shown)
        write_atomically(out / f"{FIGURE}.svg", drawing.svg.encode())
        write_atomically(out / f"{FIGURE}.png", drawing.png)
        # Written last: a record means that all files are complete.
        write_atomically(out / JSON_FILE, (json.dumps(record, indent=1) + "\n").encode())
    if args.json:
        print(json.dumps(record))
    else:
        print_check(check, args.steps)
        print(f"\n{out}: {CSV_FILE}, {JSON_FILE}, {FIGURE}.svg, {FIGURE}.png")
    return 1 if check.verdict == "FAIL" else 0


def print_check(check: "CoordinateCheck", steps: int) -> None:
    """Print a table per axis, then failures and the verdict."""
    from expertp.coordcheck.slopes import CHECKS, HEADINGS, first_settled_step

    print(f"rules {check.rules}: slope of log size against log scale ± standard error over seeds (expected)")
    print(f"updates and sizes after steps {first_settled_step(steps)}..{steps}, geometric mean; !: not as expected")
    for axis in dict.fromkeys(slope.axis for slope in check.slopes):
        on_axis = [slope for slope in check.slopes if slope.axis == axis]
        rows: list[tuple[str, ...]] = [(axis, *(HEADINGS[name] for name in CHECKS), "verdict")]
        for module in dict.fromkeys(slope.module for slope in on_axis):
            by_check = {slope.check: slope for slope in on_axis if slope.module == module}
            verdict = "FAIL" if any(slope.verdict == "FAIL" for slope in by_check.values()) else "PASS"
            rows.append((module, *(_cell(by_check.get(name)) for name in CHECKS), verdict))
        print(f"\n{text_table(rows)}")
    print()
    for each in check.diverged:
        print(
            f"FAIL: {each.axis} {each.scale:g}x, seed {each.seed}: the run diverged at step {each.step}; lower hps.lr"
        )
    failed_slopes = sum(slope.verdict == "FAIL" for slope in check.slopes)
    print(f"{check.verdict}: {len(check.slopes) - failed_slopes} of {len(check.slopes)} slopes are as expected")


def _cell(slope: "Slope | None") -> str:
    """Return a slope as text: "none" if no seed has all scales, "zero" if all sizes are 0 (a zero router at init)."""
    if slope is None:
        return ""
    mark = "!" if slope.verdict == "FAIL" else ""
    expected = f"{slope.low:g}" if slope.low == slope.high else f"{slope.low:g}..{slope.high:g}"
    if slope.slope is None:
        return f"{'zero' if slope.verdict == '-' else 'none'} ({expected}){mark}"
    error = "" if slope.standard_error is None else f" ±{slope.standard_error:.2f}"
    return f"{slope.slope:+.2f}{error} ({expected}){mark}"


def _stored(out: Path, key: str) -> "CheckRecord | None":
    """Return the record of this check in a directory, None without one; the record of another check is an error."""
    from expertp.coordcheck.records import CheckRecord

    try:
        found = read_record(out / JSON_FILE, CheckRecord, "choose another --out, or remove it to measure again")
    except FileNotFoundError:
        return None
    if found.key != key:
        raise InputError(
            f"{out} holds a coordinate check of another study, data, rule set or number of steps; choose another "
            f"--out, or remove its {JSON_FILE} to measure again"
        )
    return found


def _measure(runs: Sequence["ProbedRun"], dataset: "Dataset", steps: int) -> "list[Measurement]":
    """Measure all runs; show each that has ended, and the time left in proportion to FLOPs."""
    from expertp.coordcheck.measuring import measure

    costs = [each.run.model.flops_per_token() for each in runs]
    started, done = time.monotonic(), 0

    def show(each: "ProbedRun", probed: "Probed") -> None:
        nonlocal done
        done += 1
        share = sum(costs[:done]) / sum(costs)
        left = (time.monotonic() - started) * (1 - share) / share
        axis, size = each.sizes[0]
        what = "base" if size.is_base else f"{axis} {size.scale:g}x"
        how = f"loss {probed.loss:.3f}" if probed.diverged_at is None else f"diverged at step {probed.diverged_at}"
        reporter.update(sum(costs[:done]), f"{duration(left)} left")
        reporter.line(
            f"run {done}/{len(costs)}, {what}, seed {each.run.train.seed}: {how}; about {duration(left)} left"
        )

    # No heartbeat: every run prints a line.
    with Reporter("coordcheck", total=sum(costs), heartbeat=math.inf, shows_time=False) as reporter:
        reporter.line(f"{plural(len(runs), 'run')} of {plural(steps, 'step')}")
        return measure(runs, dataset, steps, on_run=show)
