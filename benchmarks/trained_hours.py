"""What was trained for the findings of the paper, in core hours, and what full grids would have taken.

    python benchmarks/trained_hours.py [--fill docs/paper.md]

The seconds are those of the published tables of runs, docs/results/paper/results; a run that several studies share
counts once in the total. The full grid of an adaptive study has all values of the profile's grids at all sizes of the
study, on each curve with as many seeds as the adaptive study has chosen there, and the same runs of other arms. Its
time comes from the mean seconds per model of the same study, since speed differs between days; that of a model without
runs is scaled by FLOPs.
"""

import argparse
import csv
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.recorded import PAPER
from expertp.paper.profile import ProfileSpec, load_profile
from expertp.paper.results import recorded_choice
from expertp.spec import RunSpec
from expertp.study.cells import expand
from expertp.study.forecast import with_all_models
from expertp.study.spec import ChoiceSpec, StudySpec
from scripts.docs_tables import fill_blocks, markdown_table

RESULTS = PAPER / "results"
BLOCK = "measured-hours"
FIELDS = ("n_embd", "n_layer", "n_exp", "n_act", "alpha_ffn")
HOUR = 3600.0
# Name of the studies' own arm.
OWN = "expertp"
# A model, and the steps that it was trained.
Trained = tuple[float, ...]
Row = Mapping[str, str]


@dataclass(frozen=True)
class Hours:
    """What a study took, and what its full grid would have taken; None where the study is not adaptive."""

    study: str
    runs: int
    seconds: float
    full_runs: int | None = None
    full_seconds: float | None = None


def read_tables(folder: Path = RESULTS) -> dict[str, list[Row]]:
    """Return the rows of all published tables of runs, by study."""
    tables = {}
    for path in sorted(folder.glob("*.csv")):
        if not path.stem.endswith("-metrics"):
            with path.open(newline="") as file:
                tables[path.stem] = list(csv.DictReader(file))
    return tables


def seconds_of(rows: Sequence[Row]) -> float:
    """Return the training time of runs; those that rows share count once."""
    return sum({row["identity"]: float(row["seconds"] or 0.0) for row in rows}.values())


def mean_seconds(rows: Sequence[Row]) -> dict[Trained, float]:
    """Return the mean seconds of finished runs by model and steps."""
    found: dict[Trained, dict[str, float]] = defaultdict(dict)
    for row in (row for row in rows if row["status"] == "finished"):
        key = (*(float(row[field]) for field in FIELDS), float(row["step"]))
        found[key][row["identity"]] = float(row["seconds"])
    return {key: statistics.fmean(by_run.values()) for key, by_run in found.items()}


def full_grid(study: StudySpec, choices: Sequence[ChoiceSpec]) -> list[RunSpec]:
    """Return the runs of a study's own arm with all values of its grids at all sizes, with the chosen seeds."""
    runs = []
    for choice in choices:
        axes = {choice.axis: study.axes[choice.axis]} if choice.axis in study.axes else {}
        joint = {choice.axis: study.joint[choice.axis]} if choice.axis in study.joint else {}
        whole = study.replace(
            axes={axis: each.replace(sweep=(choice.hp,), sweep_at=None) for axis, each in axes.items()},
            joint={axis: each.replace(sweep=(choice.hp,), sweep_at=None) for axis, each in joint.items()},
            **{"arms": {}, "seeds": choice.seeds, "chosen": None},
        )
        runs += [cell.run for cell in expand(whole)]
    return list(dict.fromkeys(runs))


def seconds_by_run(runs: Sequence[RunSpec], means: Mapping[Trained, float]) -> dict[RunSpec, float]:
    """Return the training time of runs, from the mean seconds of their models."""
    keys = {
        run.model: (*(float(getattr(run.model, field)) for field in FIELDS), float(run.train.steps)) for run in runs
    }
    known = with_all_models({model: means[key] for model, key in keys.items() if key in means}, list(keys))
    return {run: known[run.model] for run in runs}


def hours(tables: Mapping[str, Sequence[Row]], profile: ProfileSpec, folder: Path = RESULTS) -> list[Hours]:
    """Return the times of every study, of all adaptive ones together, and of all."""
    found, grids = list[Hours](), dict[RunSpec, float]()
    adaptive, others = list[Row](), list[Row]()
    for name, rows in tables.items():
        choices = recorded_choice(name, folder)
        if choices is None:
            found.append(Hours(name, _count(rows), seconds_of(rows)))
            continue
        grid = seconds_by_run(full_grid(profile.study(name, profile.corpus_of(name)), choices), mean_seconds(rows))
        arms = [row for row in rows if OWN not in row["arm"].split(";")]
        found.append(_beside_full(name, rows, grid, arms))
        grids |= grid
        adaptive += rows
        others += arms
    everything = [row for rows in tables.values() for row in rows]
    total = _beside_full("all adaptive ones", adaptive, grids, others)
    return [
        *sorted(found, key=lambda each: each.full_runs is None),
        total,
        Hours("all studies", _count(everything), seconds_of(everything)),
    ]


def _beside_full(name: str, rows: Sequence[Row], grid: Mapping[RunSpec, float], arms: Sequence[Row]) -> Hours:
    """Return the times of an adaptive study, given the seconds of the full grid and the runs of other arms."""
    full_runs, full = len(grid) + _count(arms), sum(grid.values()) + seconds_of(arms)
    return Hours(name, _count(rows), seconds_of(rows), full_runs, full)


def _count(rows: Sequence[Row]) -> int:
    return len({row["identity"] for row in rows})


def hours_table() -> str:
    """Return the table of docs/paper.md."""
    cells = []
    for each in hours(read_tables(), load_profile("cpu")):
        full = () if each.full_seconds is None else (str(each.full_runs), f"{each.full_seconds / HOUR:.2f}")
        cells.append((each.study, str(each.runs), f"{each.seconds / HOUR:.2f}", *(full or ("", ""))))
    return markdown_table(("study", "runs", "core hours", "runs of the full grid", "its core hours"), cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fill", type=Path, help="page whose block is filled, such as docs/paper.md")
    args = parser.parse_args()
    table = hours_table()
    print(table)
    if args.fill:
        text = args.fill.read_text(encoding="utf-8")
        args.fill.write_text(fill_blocks(text, {BLOCK: lambda: table}), encoding="utf-8")


if __name__ == "__main__":
    main()
