"""results.csv: one row per run of a study."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable

from expertp.spec import RunSpec
from expertp.study.cells import SIZE_FIELDS, Cell
from expertp.study.table import Result

SETTINGS = ("log2_lr", "log2_init_std", "seed", "parameters", "active_parameters")
# Numbers of a run's summary that a result repeats.
NUMBERS = ("step", "train_loss", "val_loss", "max_load_deviation", "dead_experts", "seconds")
OUTCOMES = ("status", *NUMBERS, "error")
COLUMNS = ("identity", "arm", "rules", *SIZE_FIELDS, *SETTINGS, *OUTCOMES)


def results_csv(cells: Iterable[Cell], results: Iterable[Result]) -> str:
    """Return results as the text of results.csv; the cells say which arms need a run."""
    arms: dict[RunSpec, dict[str, None]] = {}
    for cell in cells:
        arms.setdefault(cell.run, {})[cell.arm.name] = None
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_row(result, ";".join(arms[result.run])) for result in results)
    return text.getvalue()


def _row(result: Result, arm: str) -> dict[str, object]:
    run, counts = result.run, result.run.model.counts()
    return {
        "identity": result.identity,
        "arm": arm,
        "rules": run.hps.rules,
        **{name: getattr(run.model, name) for name in SIZE_FIELDS},
        "log2_lr": math.log2(run.hps.lr),
        "log2_init_std": math.log2(run.hps.init_std),
        "seed": run.train.seed,
        "parameters": counts.total,
        "active_parameters": counts.active,
        **{name: "" if (value := getattr(result, name)) is None else value for name in OUTCOMES},
    }
