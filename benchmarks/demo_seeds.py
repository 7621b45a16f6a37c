"""Does the demo end as it should with other seeds? The study of `expertp demo` with five fresh sets of seeds.

    python -m benchmarks.demo_seeds --out demo-seeds [--workers 2] [--table docs/results/demo/seeds.csv]

A set ends as it should if the rules TRANSFER along width and experts while sp FAILS along width. Every set has the
demo's six minutes on two workers, or twelve on one. Runs that have ended are not trained again.
"""

import argparse
import csv
import sys
import time
from pathlib import Path

from expertp.analysis.transfer import judge
from expertp.analysis.verdict import StudyVerdict
from expertp.cli.demo import MINUTES
from expertp.cli.main import main as expertp
from expertp.study.store import read_study

STUDY = Path(__file__).parents[1] / "configs" / "demo.yaml"
SETS = ((10, 11, 12), (20, 21, 22), (30, 31, 32), (40, 41, 42), (50, 51, 52))
COLUMNS = ("seeds", "arm", "axis", "verdict", "cost", "low", "high", "ends as it should")


def train(seeds: tuple[int, ...], out: Path, workers: int) -> StudyVerdict:
    """Sweep the demo's study with other seeds, and judge it."""
    data, directory = out / "data", out / f"seeds-{seeds[0]}"
    minutes = 2 * float(MINUTES) / workers
    assert expertp(["prepare", "builtin", "--out", str(data), "--tokenizer", "bpe", "--vocab-size", "512"]) == 0
    words = ["sweep", str(STUDY), "--out", str(directory), "--until", "decided", "--minutes", f"{minutes:g}"]
    words += ["--workers", str(workers), f"train.data={data.resolve()}", f"seeds={list(seeds)}"]
    assert expertp(words) == 0
    return judge(read_study(directory).table())


def ends_as_it_should(verdict: StudyVerdict) -> bool:
    """Return whether the rules transfer along width and experts, and sp fails along width."""
    ours = {each.axis: each.conclusion for each in verdict.axes}
    sp = {each.axis: each.conclusion for each in verdict.others if each.arm.name == "sp"}
    return ours["width"] == ours["experts"] == "TRANSFERS" and sp["width"] == "FAILS"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--workers", type=int, default=2, choices=(1, 2))
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the verdicts to a CSV")
    args = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    for seeds in SETS:
        started = time.monotonic()
        verdict = train(seeds, args.out, args.workers)
        is_good = ends_as_it_should(verdict)
        for each in (*verdict.axes, *verdict.others):
            cost = (f"{value:.4f}" for value in (each.cost.value, each.cost.low, each.cost.high))
            rows.append((" ".join(map(str, seeds)), each.arm.name, each.axis, each.conclusion, *cost, is_good))
        print(f"seeds {seeds}: {'as it should' if is_good else 'NOT as it should'}, {time.monotonic() - started:.0f} s")
        sys.stdout.flush()
        if args.table:
            with args.table.open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


if __name__ == "__main__":
    main()
