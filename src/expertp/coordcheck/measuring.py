"""Measurements of short runs along each axis: one number per module, quantity, step, scale and seed."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import torch
from pydantic import TypeAdapter

from expertp.config import content_hash, run_id
from expertp.data import Dataset, eval_batches
from expertp.errors import DamagedError, InputError
from expertp.spec import Model, RunSpec
from expertp.study.cells import Size, arm_hps, axis_names, run_of, sizes
from expertp.study.spec import StudySpec
from expertp.training.loop import TrainingLoop, check_run, deterministic, resolve_device
from expertp.training.resolution import resolved
from expertp.util.records import Count, read_bounded

# Tokens of the batch on which sizes are measured: the same validation tokens for every model.
PROBE_TOKENS = 1024
# Sizes are recorded at init, after the first step and at this many steps after it, evenly spaced.
RECORDS = 12
# Part of the measurements' identity; raise it when measurements change.
FORMAT = 1


@dataclass(frozen=True)
class Measurement:
    """One number. A run that diverged has one of module "run" and quantity "diverged" at its last step."""

    rules: str
    axis: str
    scale: float
    seed: Count
    step: Count
    module: str
    quantity: str
    value: float


@dataclass(frozen=True)
class ProbedRun:
    """One short run, and its sizes as (axis, size): the base is a size of every axis."""

    run: RunSpec
    sizes: tuple[tuple[str, Size], ...]


@dataclass(frozen=True)
class Probed:
    """Results of a run: sizes as (step, module, quantity, value), the last loss, and the step of a divergence."""

    sizes: tuple[tuple[int, str, str, float], ...]
    loss: float
    diverged_at: int | None


def probed_runs(study: StudySpec, rules: str) -> tuple[ProbedRun, ...]:
    """Return the runs of a check, small models first.

    They train like the study's runs, except that the learning rate is constant from the first step on. A warm-up would
    shrink the updates that are measured.
    """
    places: dict[Model, list[tuple[str, Size]]] = defaultdict(list)
    for axis in axis_names(study):
        on_axis = sizes(study, axis)
        if len(on_axis) < 2:
            raise InputError(f"axis '{axis}' has one size; a slope needs two or more, the base among them")
        for size in on_axis:
            places[size.model].append((axis, size))
    constant = study.train.replace(schedule="constant", decay_steps=None, warmup_steps=0, eval_every=0)
    short, hps, device = study.replace(train=constant, verdict=None), arm_hps(study, rules), resolve_device(study.train)
    return tuple(
        ProbedRun(resolved(run_of(short, model, hps, seed), device), tuple(places[model]))
        for model in sorted(places, key=lambda model: model.flops_per_token())
        for seed in study.seeds
    )


def check_key(runs: Sequence[ProbedRun], steps: int, data_hash: str) -> str:
    """Return the identity of a check's measurements: a hash of all their inputs."""
    named = [[run_id(each.run, data_hash), [(axis, size.scale) for axis, size in each.sizes]] for each in runs]
    return content_hash({"runs": named, "steps": steps, "format": FORMAT})


def check_input(runs: Sequence[ProbedRun], dataset: Dataset) -> None:
    """Check models, data and probe batch before anything is trained or written."""
    for run in {each.run.model: each.run for each in runs}.values():
        check_run(run, dataset, resolve_device(run.train))
    _probe_tokens(runs[0].run, dataset)


def measure(
    runs: Sequence[ProbedRun],
    dataset: Dataset,
    steps: int,
    on_run: Callable[[ProbedRun, Probed], None] = lambda _run, _probed: None,
) -> list[Measurement]:
    """Train and probe every run in memory; `on_run` is called with each run that has ended."""
    table = []
    for each in runs:
        probed = probe_run(each.run, dataset, steps)
        entries = list(probed.sizes)
        if probed.diverged_at is not None:
            entries.append((probed.diverged_at, "run", "diverged", 1.0))
        rules, seed = each.run.hps.rules, each.run.train.seed
        table += [
            Measurement(rules, axis, size.scale, seed, step, module, quantity, value)
            for axis, size in each.sizes
            for step, module, quantity, value in entries
        ]
        on_run(each, probed)
    return table


def probe_run(run: RunSpec, dataset: Dataset, steps: int) -> Probed:
    """Train and probe one run in memory; nothing is recorded after a divergence."""
    device = resolve_device(run.train)
    loop = TrainingLoop(run, dataset, device)
    probe = loop.model.probe(_probe_tokens(run, dataset).to(device))
    recorded = set(recorded_steps(steps))
    sizes: list[tuple[int, str, str, float]] = []
    loss = math.nan
    with deterministic(device):
        for step in range(steps + 1):
            if step > 0:
                outcome = loop.step()
                loss = outcome.loss
                if outcome.diverged:
                    return Probed(tuple(sizes), loss, diverged_at=step - 1)
            if step in recorded:
                measured = probe.measure().items()
                # updates are 0 at init
                sizes += [(step, *key, size) for key, size in measured if step > 0 or key[1] == "size"]
    return Probed(tuple(sizes), loss, diverged_at=None)


def recorded_steps(steps: int) -> list[int]:
    """Return the steps after which sizes are recorded.

    >>> recorded_steps(60)
    [0, 1, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60]
    """
    return sorted({0, 1, *(math.ceil(steps * part / RECORDS) for part in range(1, RECORDS + 1))})


def to_csv(table: Iterable[Measurement]) -> str:
    """Return a table as CSV, with exact floats."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(Measurement)])
    writer.writerows(astuple(row) for row in table)
    return text.getvalue()


def read_csv(path: Path, sha256: str | None, remedy: str) -> list[Measurement]:
    """Return the table that `to_csv` wrote to a file.

    Args:
        path: the file.
        sha256: its hash, if known.
        remedy: what to do if the file is damaged; the end of the error message.
    """
    content = read_bounded(path, remedy)
    if sha256 not in (None, hashlib.sha256(content).hexdigest()):
        raise DamagedError(f"{path}: damaged (it was changed after it was written); {remedy}")
    try:
        rows = list(csv.DictReader(io.StringIO(content.decode())))
        return TypeAdapter(list[Measurement]).validate_python(rows)
    except (ValueError, csv.Error):  # not UTF-8, not the columns, or not numbers
        raise DamagedError(f"{path}: damaged (not a table of measurements); {remedy}") from None


def _probe_tokens(run: RunSpec, dataset: Dataset) -> torch.Tensor:
    """Return the inputs of the batch on which sizes are measured."""
    context = run.model.context
    sequences = max(1, PROBE_TOKENS // context)
    batch = next(iter(eval_batches(dataset.val, context, sequences, sequences * context)))
    return torch.from_numpy(batch[:, :-1])
