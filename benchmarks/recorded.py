"""Published tables of runs as studies: loss surfaces with seeds, for replays of the verdict and of adaptive sweeps."""

import csv
import math
from pathlib import Path

from expertp.spec import BaseHPs, ModelSpec, RunSpec, TrainSpec
from expertp.study.cells import expand
from expertp.study.spec import AxisSpec, GridSpec, StudySpec
from expertp.study.table import Result, StudyTable

RESULTS = Path(__file__).parents[1] / "docs/results/verdict/recorded"
PAPER = Path(__file__).parents[1] / "docs/results/paper"
# Steps of warm-up of all recorded runs.
WARMUP = 100
FIELDS = {"width": "n_embd", "depth": "n_layer", "experts": "n_exp", "alpha": "alpha_ffn"}
# Field of a run that tells it apart from others of its table.
Key = tuple[float, ...]


def recorded_table(
    name: str,
    base: dict[str, float],
    log2_lr: float,
    log2_init_std: float,
    folder: Path = RESULTS,
) -> StudyTable:
    """Return the study's own arm of a published table, with all axes, sizes, values and seeds that the table has.

    Args:
        name: name of the table.
        base: n_embd, n_layer, n_exp, n_act and alpha_ffn of the base.
        log2_lr: learning rate of zero-shot runs.
        log2_init_std: init std of zero-shot runs.
        folder: folder of the table.
    """
    with (folder / f"{name}.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if "expertp" in row["arm"].split(";")]
    models = {tuple(float(row[field]) for field in base) for row in rows}
    fields = list(base)
    axes = {}
    for axis, field in FIELDS.items():
        place, others = fields.index(field), [each for each in fields if each not in (field, "n_act")]
        found = {m[place] for m in models if all(m[fields.index(each)] == base[each] for each in others)}
        if len(found) > 1:
            axes[axis] = AxisSpec(sizes=tuple(sorted(found)))
    at_lr = {float(row["log2_init_std"]) for row in rows if float(row["log2_lr"]) == log2_lr}
    at_init = {float(row["log2_lr"]) for row in rows if float(row["log2_init_std"]) == log2_init_std}
    whole = {field: value if field == "alpha_ffn" else int(value) for field, value in base.items()}
    study = StudySpec(
        name=name,
        base=ModelSpec(**whole, d_head=32, vocab_size=512, context=128),
        hps=BaseHPs(lr=2.0**log2_lr, init_std=2.0**log2_init_std),
        train=TrainSpec(
            data="tokens", steps=int(rows[0]["step"]), batch_tokens=1024, warmup_steps=WARMUP, eval_every=1
        ),
        axes=axes,
        grids=GridSpec(log2_lr=tuple(sorted(at_init)), log2_init_std=tuple(sorted(at_lr)) if len(at_lr) > 1 else None),
        seeds=tuple(sorted({int(row["seed"]) for row in rows})),
    )
    losses = {
        _key({**row, "log2_lr": float(row["log2_lr"]), "log2_init_std": float(row["log2_init_std"])}): row
        for row in rows
    }
    results = []
    for run in dict.fromkeys(cell.run for cell in expand(study)):
        row = losses.get(_key_of(run))
        if row is not None:
            loss = float(row["val_loss"]) if row["val_loss"] else None
            results.append(Result(run, row["identity"], row["status"], int(row["step"]), val_loss=loss))
    return StudyTable.join(study, results)


def _key(row: dict[str, object]) -> Key:
    fields = ("n_embd", "n_layer", "n_exp", "n_act", "alpha_ffn", "log2_lr", "log2_init_std", "seed")
    return tuple(round(float(str(row[field])), 6) for field in fields)


def _key_of(run: RunSpec) -> Key:
    hps = {"log2_lr": math.log2(run.hps.lr), "log2_init_std": math.log2(run.hps.init_std), "seed": run.train.seed}
    return _key({**run.model.model_dump(), **hps})


QUARTER = {"n_embd": 96, "n_layer": 2, "n_exp": 4, "n_act": 1, "alpha_ffn": 1.0}
TWELFTH = {**QUARTER, "n_exp": 12}


def recorded_studies() -> dict[str, StudyTable]:
    """Return the recorded studies with whole grids."""
    return {
        "transfer-quarter": recorded_table("transfer-quarter", QUARTER, -8, -4),
        "transfer-twelfth": recorded_table("transfer-twelfth", TWELFTH, -8, -4),
    }


PRESENT = {"n_embd": 64, "n_layer": 2, "n_exp": 8, "n_act": 2, "alpha_ffn": 1.0}


def present_studies() -> dict[str, StudyTable]:
    """Return the published studies of the present profile with curves at the base and at a largest size.

    They are adaptive: cells that were not chosen have no result. That of depth is the pilot of the profile's study.
    """
    results, pilots = PAPER / "results", PAPER / "pilots"
    return {
        "transfer-quarter": recorded_table("transfer-quarter", PRESENT, -6.5, -3.5, results),
        "transfer-quarter-beside": recorded_table("transfer-quarter-beside", PRESENT, -6.5, -3.5, results),
        "transfer-quarter-depth": recorded_table(
            "transfer-quarter-depth", {**PRESENT, "n_layer": 4}, -6.5, -3.5, pilots
        ),
    }
