"""Results of finished runs as small files per study, and back: published results need not be trained again.

NAME.csv            one row per run: the study's results.csv
NAME-metrics.csv    training records of zero-shot runs and of all runs of the base, means over blocks of steps
NAME-chosen.yaml    the cells that an adaptive study has chosen, and the runs that it has stopped early

Figures show all training records in these blocks, whether a run was trained here or taken from tables, so that both can
be mixed.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from expertp.config import load_spec
from expertp.errors import InputError
from expertp.spec import Spec
from expertp.study.early_stopping import Comparison
from expertp.study.spec import ChoiceSpec
from expertp.study.store import StudyDirectory
from expertp.study.table import DONE, SETTLED
from expertp.training.records import RunResult, StepMetrics
from expertp.training.resolution import resolved
from expertp.training.store import write_ended_run
from expertp.util.files import write_atomically
from expertp.util.plain_yaml import to_yaml
from expertp.util.records import read_bounded

# Steps per block, and the significant digits of the means over a block.
BLOCK = 5
LOSS_DIGITS, LOAD_DIGITS = 8, 6
METRICS = ("identity", "step", "loss", "val_loss", "max_load_deviation", "dead_experts", "tokens", "seconds")
_Parsed = TypeVar("_Parsed")


class ChosenSpec(Spec):
    """The cells that an adaptive study has chosen, and the runs that it has stopped early by identity."""

    chosen: tuple[ChoiceSpec, ...]
    stopped: dict[str, Comparison] = Field({}, description="why, by identity")


def export_results(directory: StudyDirectory, folder: Path) -> None:
    """Write the files of a study."""
    name = directory.study.name
    directory.write_results()
    write_atomically(folder / f"{name}.csv", (directory.path / "results.csv").read_bytes())
    # Findings show the whole grids of the base over time, also those of a dense base.
    shown = {cell.run for cell in directory.cells if cell.hp is None or cell.size.is_base}
    text = io.StringIO()
    writer = csv.DictWriter(text, METRICS, lineterminator="\n")
    writer.writeheader()
    for result in directory.results():
        run = directory.directory(result.identity) if result.status in DONE and result.run in shown else None
        if run is not None:
            writer.writerows({"identity": result.identity, **_row(block)} for block in in_blocks(run.metrics()))
    write_atomically(folder / f"{name}-metrics.csv", text.getvalue().encode())
    if directory.study.chosen is not None:
        stops = {
            each.identity: directory.stop(each.identity) for each in directory.results() if each.status == "stopped"
        }
        stopped = {identity: stop for identity, stop in stops.items() if stop is not None}
        tree = ChosenSpec(chosen=directory.study.chosen, stopped=stopped).model_dump(mode="json")
        write_atomically(folder / f"{name}-chosen.yaml", to_yaml(tree).encode())


def recorded_choice(study: str, folder: Path) -> tuple[ChoiceSpec, ...] | None:
    """Return the cells that a published adaptive study has chosen; None where the folder has none."""
    found = _chosen(study, folder)
    return found.chosen if found else None


def _chosen(study: str, folder: Path) -> ChosenSpec | None:
    path = folder / f"{study}-chosen.yaml"
    return load_spec(ChosenSpec, path) if path.exists() else None


def in_blocks(records: Sequence[StepMetrics]) -> list[StepMetrics]:
    """Return one record per block of steps; a block ends at a validation, so that its loss keeps its step.

    Means are rounded as tables store them, so that a run gives the same numbers whether it was trained here or taken
    from a table. Records that are blocks already stay as they are.
    """
    blocks: list[list[StepMetrics]] = []
    for record in records:
        last = blocks[-1][-1] if blocks else None
        if last is None or last.val_loss is not None or _block_of(last) != _block_of(record):
            blocks.append([])
        blocks[-1].append(record)
    return [_mean(block) for block in blocks]


def _block_of(record: StepMetrics) -> int:
    return (record.step - 1) // BLOCK


def _mean(block: Sequence[StepMetrics]) -> StepMetrics:
    losses = [record.loss for record in block if not math.isnan(record.loss)]
    deviations = [record.load_deviation for record in block if record.load_deviation is not None]
    last = block[-1]
    return StepMetrics(
        step=last.step,
        loss=_rounded(statistics.fmean(losses), LOSS_DIGITS) if losses else math.nan,
        val_loss=last.val_loss,
        max_load_deviation=(_rounded(statistics.fmean(deviations), LOAD_DIGITS),) if deviations else (),
        dead_experts=(sum(last.dead_experts),) if last.dead_experts else (),
        tokens=last.tokens,
        seconds=last.seconds,
    )


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _row(block: StepMetrics) -> dict[str, object]:
    """Return the row of a block, with an empty cell for what is not known."""
    deviation = block.load_deviation
    return {
        "step": block.step,
        "loss": "" if math.isnan(block.loss) else f"{block.loss:.{LOSS_DIGITS}g}",
        "val_loss": "" if block.val_loss is None else block.val_loss,
        "max_load_deviation": "" if deviation is None else f"{deviation:.{LOAD_DIGITS}g}",
        "dead_experts": block.dead_experts[0] if block.dead_experts else "",
        "tokens": block.tokens,
        "seconds": "" if math.isnan(block.seconds) else block.seconds,
    }


def import_results(directory: StudyDirectory, folder: Path) -> int:
    """Write runs from a folder of tables into a study's directory; return how many were missing there.

    Runs that have ended are taken, and those that an adaptive study has stopped if this study is adaptive as well.
    """
    table, metrics = folder / f"{directory.study.name}.csv", folder / f"{directory.study.name}-metrics.csv"
    if not table.exists():
        return 0
    results = dict(_read(table, _result))
    records: dict[str, list[StepMetrics]] = {}
    for identity, record in _read(metrics, _record) if metrics.exists() else ():
        records.setdefault(identity, []).append(record)
    chosen = _chosen(directory.study.name, folder) if directory.study.chosen is not None else None
    stops = chosen.stopped if chosen else {}
    taken = 0
    for identity, run in directory.runs.items():
        result, stop = results.get(identity), stops.get(identity)
        if result is None or directory.result(identity).status in (*SETTLED, "damaged"):
            continue
        if not result.has_ended:
            if stop is None:
                continue
            directory.note_stop(identity, stop)
        write_ended_run(
            directory.place(identity),
            resolved(run, directory.device),
            identity,
            directory.data_hash,
            replace(result, steps=run.train.steps, tokens=result.step * run.train.batch_tokens),
            records.get(identity, []),
        )
        taken += 1
    return taken


def _read(path: Path, parse: Callable[[Mapping[str, str]], _Parsed]) -> list[tuple[str, _Parsed]]:
    """Return the rows of a table with the identities of their runs."""
    content = read_bounded(path, "copy it again from where it was published")
    try:
        rows = csv.DictReader(io.StringIO(content.decode()))
        return [(row["identity"], parse(row)) for row in rows]
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        why = f"no column {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{path}: not a table of runs as `expertp paper page` writes it: {why}") from None


def _result(row: Mapping[str, str]) -> RunResult | None:
    """Return the result of a row, None where there is none; steps and tokens are known from the run only."""
    numbers = {key: _number(row[key]) for key in ("train_loss", "val_loss", "max_load_deviation", "dead_experts")}
    if row["status"] not in SETTLED:
        return None
    step, seconds = int(row["step"]), float(row["seconds"])
    return RunResult.from_dict(
        {"status": row["status"], "step": step, "steps": step, "tokens": 0, "seconds": seconds, **numbers}
    )


def _record(row: Mapping[str, str]) -> StepMetrics:
    loss, deviation, seconds = (_number(row[key]) for key in ("loss", "max_load_deviation", "seconds"))
    return StepMetrics(
        step=int(row["step"]),
        loss=math.nan if loss is None else loss,
        val_loss=_number(row["val_loss"]),
        max_load_deviation=() if deviation is None else (deviation,),
        dead_experts=(int(row["dead_experts"]),) if row["dead_experts"] else (),
        tokens=int(row["tokens"]),
        seconds=math.nan if seconds is None else seconds,
    )


def _number(text: str) -> float | None:
    return float(text) if text else None
