"""Finished cells as two small tables, and back: results that were committed need not be trained again.

NAME.csv            one row per run, as the study's results.csv
NAME-metrics.csv    of the base, and of larger models with the base's hyperparameters: mean loss and loads of a few
                    steps each

Figures see the records of all runs in these blocks of steps, trained here or taken from tables: both can be mixed.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from expertp.errors import InputError
from expertp.files import write_atomically
from expertp.report.reading import Reading, Record
from expertp.store import write_ended_run
from expertp.study_store import DONE, StudyDirectory

# Steps that one row of metrics stands for.
BLOCK = 5
METRICS = ("identity", "step", "loss", "val_loss", "max_load_deviation", "dead_experts", "tokens", "seconds")


def export_cells(reading: Reading, folder: Path) -> None:
    """Write a study's two tables."""
    name = reading.study.name
    write_atomically(folder / f"{name}.csv", (reading.directory.path / "results.csv").read_bytes())
    text = io.StringIO()
    writer = csv.DictWriter(text, METRICS, lineterminator="\n")
    writer.writeheader()
    for result in reading.results:
        hps = result.run.hps
        is_centre = hps == reading.study.hps_of(reading.study.contrast_of(hps) or reading.study.hps.rules)
        # Figures show the base's whole grids in time, and that of a dense model is a study's base too.
        is_shown = result.status in DONE and (is_centre or result.run.model == reading.study.base)
        run = reading.directory.directory(result.identity) if is_shown else None
        if run is not None:
            writer.writerows({"identity": result.identity, **_row(block)} for block in in_blocks(run.metrics()))
    write_atomically(folder / f"{name}-metrics.csv", text.getvalue().encode())


def in_blocks(records: Sequence[Record]) -> list[Record]:
    """Return one record for every few steps; none goes beyond a validation, which belongs to its own step.

    What is in blocks already stays as it is.
    """
    blocks: list[list[Record]] = []
    for record in records:
        last = blocks[-1][-1] if blocks else None
        is_new = last is None or last["val_loss"] is not None or _place(last) != _place(record)
        if is_new:
            blocks.append([])
        blocks[-1].append(record)
    return [_mean(block) for block in blocks]


def _place(record: Record) -> int:
    return (int(record["step"]) - 1) // BLOCK


def _mean(block: Sequence[Record]) -> Record:
    losses = [record["loss"] for record in block if record["loss"] is not None]
    deviations = [max(record["max_load_deviation"]) for record in block if record["max_load_deviation"]]
    last = block[-1]
    return {
        "step": last["step"],
        "loss": statistics.fmean(losses) if losses else None,
        "val_loss": last["val_loss"],
        "max_load_deviation": [statistics.fmean(deviations)] if deviations else [],
        "dead_experts": [sum(last["dead_experts"])] if last["dead_experts"] else [],
        "tokens": last["tokens"],
        "seconds": last["seconds"],
    }


def _row(block: Record) -> dict[str, Any]:
    """Write a record as the table has it: as exact as a loss in float32, and nothing for what is not known."""
    deviations, dead = block["max_load_deviation"], block["dead_experts"]
    return {
        **block,
        "loss": "" if block["loss"] is None else f"{block['loss']:.8g}",
        "val_loss": "" if block["val_loss"] is None else block["val_loss"],
        "max_load_deviation": f"{deviations[0]:.6g}" if deviations else "",
        "dead_experts": dead[0] if dead else "",
    }


def import_cells(directory: StudyDirectory, folder: Path) -> int:
    """Put finished cells of a folder of tables into a study's directory; return how many were not there before."""
    table, metrics = folder / f"{directory.study.name}.csv", folder / f"{directory.study.name}-metrics.csv"
    if not table.exists():
        return 0
    summaries = {identity: summary for identity, summary in _read(table, _summary) if summary["status"] in DONE}
    records: dict[str, list[dict[str, Any]]] = {}
    for identity, record in _read(metrics, _record) if metrics.exists() else ():
        records.setdefault(identity, []).append(record)
    taken = 0
    for identity, run in directory.runs.items():
        if identity not in summaries or directory.result(identity).status in DONE:
            continue
        summary = summaries[identity]
        summary |= {"steps": run.train.steps, "tokens": summary["step"] * run.train.batch_tokens}
        lines = "".join(json.dumps(record) + "\n" for record in records.get(identity, []))
        write_ended_run(directory.place(identity), run, identity, directory.data_hash, summary, lines)
        taken += 1
    return taken


def _read(path: Path, parse: Callable[[Mapping[str, str]], dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return what a table has, row by row, with the run that each is of."""
    try:
        rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
        return [(row["identity"], parse(row)) for row in rows]
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        why = f"no column {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{path}: not a table of runs as `expertp figures page` writes it: {why}") from None


def _summary(row: Mapping[str, str]) -> dict[str, Any]:
    return {
        "status": row["status"],
        "step": int(row["step"] or 0),
        **{key: _number(row[key]) for key in ("train_loss", "val_loss", "max_load_deviation", "seconds")},
        "dead_experts": int(row["dead_experts"]) if row["dead_experts"] else None,
    }


def _record(row: Mapping[str, str]) -> dict[str, Any]:
    deviation, dead = _number(row["max_load_deviation"]), _number(row["dead_experts"])
    return {
        "step": int(row["step"]),
        "loss": _number(row["loss"]),
        "val_loss": _number(row["val_loss"]),
        "max_load_deviation": [] if deviation is None else [deviation],
        "dead_experts": [] if dead is None else [int(dead)],
        "tokens": int(row["tokens"]),
        "seconds": _number(row["seconds"]),
    }


def _number(text: str) -> float | None:
    return float(text) if text else None
