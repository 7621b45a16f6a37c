"""The directory of a study: the only module that knows its file names.

study.json    what the study is, the hash of its data, the device that it runs on and where its runs are
runs/NAME/    one run each, as `expertp train` leaves it; studies may share these, in a directory beside theirs
failures/     IDENTITY.json: why a run has failed
workers/      PID.json: the run that a worker is at; NUMBER.log: what it had to say
results.csv   one row per run
"""

import csv
import io
import json
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from expertp.config import OPERATIONAL, build, run_id
from expertp.data import check_vocab, open_dataset
from expertp.errors import InputError
from expertp.files import move_into_place, write_atomically, write_durably
from expertp.loop import plan_run, resolve_device, resolved
from expertp.spec import RunSpec
from expertp.store import RunDirectory, read_run
from expertp.study import SIZE_FIELDS, RefinementSpec, StudySpec, expand

FORMAT = 1
# What all runs of a study share. Where one of these differs, it is another study; axes, grids and seeds may grow.
SHARED = ("base", "hps", "train")
NOT_SHARED = {*OPERATIONAL["train"], "seed"}
FOLDERS = ("failures", "workers")
# Where the runs of a study are that shares them with no other.
OWN_CELLS = "runs"
# How often a run may fail before it is given up.
TRIES = 2
DONE = ("finished", "diverged")
ENDED = (*DONE, "failed")
ResultStatus = Literal["finished", "diverged", "failed", "unfinished", "missing"]


@dataclass(frozen=True)
class Result:
    """How one run of a study stands: numbers of its last record, None where there is none."""

    run: RunSpec
    identity: str
    status: ResultStatus
    step: int = 0
    train_loss: float | None = None
    val_loss: float | None = None
    max_load_deviation: float | None = None
    dead_experts: int | None = None
    seconds: float | None = None
    error: str = ""


@dataclass(frozen=True)
class StudyDirectory:
    """A study on disk. Make it with `open_study` (to run it) or `read_study` (to look)."""

    path: Path
    study: StudySpec
    data_hash: str
    device: str
    cells: str = OWN_CELLS  # where the runs are, seen from `path`

    @cached_property
    def runs(self) -> dict[str, RunSpec]:
        """All runs that the study means, by identity; large models first, so that workers end together."""
        named = [resolved(run, self.device) for run in reversed(expand(self.study))]
        return {run_id(run, self.data_hash): run for run in named}

    def place(self, identity: str) -> Path:
        """Return a run's directory; its name is for people, and nothing reads it."""
        return self.path / self.cells / f"{_slug(self.runs[identity])}-{identity[:8]}"

    def directory(self, identity: str) -> RunDirectory | None:
        """Return the run in its directory, or None when it has not begun."""
        place = self.place(identity)
        return read_run(place) if (place / "run.json").exists() else None

    def result(self, identity: str) -> Result:
        """Return how a run stands."""
        run, directory = self.runs[identity], self.directory(identity)
        summary = directory.summary() if directory else None
        if summary and summary["status"] in DONE:
            numbers = ("step", "train_loss", "val_loss", "max_load_deviation", "dead_experts", "seconds")
            return Result(run, identity, summary["status"], **{name: summary[name] for name in numbers})
        if error := self.failure(identity):
            return Result(run, identity, "failed", error=error)
        return Result(run, identity, "unfinished" if directory else "missing")

    def results(self) -> list[Result]:
        """Return how all runs stand."""
        return [self.result(identity) for identity in self.runs]

    def note_failure(self, identity: str, error: str) -> None:
        """Write down that a run has failed, and why; once is forgiven."""
        record = {"error": error, "tries": self._failure(identity)["tries"] + 1}
        write_atomically(self.path / "failures" / f"{identity}.json", json.dumps(record).encode())

    def failure(self, identity: str) -> str:
        """Return why a run has failed for good, or nothing."""
        record = self._failure(identity)
        return str(record["error"]) if record["tries"] >= TRIES else ""

    def _failure(self, identity: str) -> dict[str, Any]:
        try:
            text = (self.path / "failures" / f"{identity}.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return {"error": "", "tries": 0}
        record: dict[str, Any] = json.loads(text)
        return record

    def forget_failures(self) -> None:
        """Give every run that has failed another chance."""
        for path in (self.path / "failures").glob("*.json"):
            path.unlink(missing_ok=True)

    def has_ended(self) -> bool:
        """Return whether nothing is left to be trained."""
        return all(result.status in ENDED for result in self.results())

    def drop_checkpoints(self, identity: str) -> None:
        """Remove the checkpoints of a run that has ended."""
        if run := self.directory(identity):
            run.drop_checkpoints()

    @contextmanager
    def at_work(self, identity: str) -> Iterator[None]:
        """Say that this process is at a run, for whoever has to know what a killed worker was at."""
        path = self.path / "workers" / f"{os.getpid()}.json"
        write_atomically(path, json.dumps({"identity": identity}).encode())
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def was_at(self, pid: int) -> str | None:
        """Return the run that a process was at when it ended, and forget it."""
        identity = self._at(pid)
        (self.path / "workers" / f"{pid}.json").unlink(missing_ok=True)
        return identity

    def running(self) -> dict[int, str]:
        """Return which run each live worker of this machine is at, by process."""
        pids = [int(path.stem) for path in (self.path / "workers").glob("*.json")]
        at = {pid: self._at(pid) for pid in pids if _lives(pid)}
        return {pid: identity for pid, identity in at.items() if identity in self.runs}

    def _at(self, pid: int) -> str | None:
        """Return what a worker says that it is at; it may have ended meanwhile."""
        try:
            note = (self.path / "workers" / f"{pid}.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        identity: str = json.loads(note)["identity"]
        return identity

    def step_of(self, identity: str) -> int:
        """Return how many steps a run has taken, as far as its records tell."""
        run = self.directory(identity)
        records = run.metrics() if run and run.metrics_path.exists() else []
        return records[-1]["step"] if records else 0

    def changed_at(self) -> int:
        """Return when the study, the end of a run or what stands beside it was last written, in nanoseconds."""
        beside = ("coordcheck*/coordcheck.json", "theory/compare.json")
        found = [path for pattern in ("study.json", "failures/*.json", *beside) for path in self.path.glob(pattern)]
        found += (self.path / self.cells).glob("*/summary.json")
        return max(path.stat().st_mtime_ns for path in found)

    def write_table(self) -> list[Result]:
        """Write results.csv, one row per run in an order that does not depend on who ran it; return the results."""
        text, results = io.StringIO(), self.results()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({"contrast": self.study.contrast_of(each.run.hps), **_row(each)} for each in results)
        _write_among_others(self.path / "results.csv", text.getvalue().encode())
        return results


SETTINGS = ("log2_lr", "log2_init_std", "seed", "parameters", "active_parameters")
OUTCOMES = ("status", "step", "train_loss", "val_loss", "max_load_deviation", "dead_experts", "seconds", "error")
COLUMNS = ("identity", "contrast", "rules", *SIZE_FIELDS, *SETTINGS, *OUTCOMES)


def _row(result: Result) -> dict[str, Any]:
    run, counts = result.run, result.run.model.counts()
    return {
        "identity": result.identity,
        "rules": run.hps.rules,
        **{name: getattr(run.model, name) for name in SIZE_FIELDS},
        "log2_lr": math.log2(run.hps.lr),
        "log2_init_std": math.log2(run.hps.init_std),
        "seed": run.train.seed,
        "parameters": counts.total,
        "active_parameters": counts.active,
        **{name: "" if (value := getattr(result, name)) is None else value for name in OUTCOMES},
    }


def open_study(path: str | Path, study: StudySpec, cells: str | None = None) -> StudyDirectory:
    """Put a study into a directory: a new one, or one that holds this study with other sizes, values or seeds.

    Args:
        path: the directory.
        study: what must exist in it.
        cells: where its runs are, seen from there; studies that give the same place share the runs that they have in
            common. By default where they are already, and in `runs` for a new study.
    """
    directory = preview_study(path, study, cells)
    directory.path.mkdir(parents=True, exist_ok=True)
    record = {
        "format": FORMAT,
        "data_hash": directory.data_hash,
        "device": directory.device,
        "cells": directory.cells,
        "study": directory.study.to_tree(),
    }
    text, place = json.dumps(record, indent=2).encode(), directory.path / "study.json"
    if not place.exists() or place.read_bytes() != text:  # what has not changed keeps its time
        _write_among_others(place, text)
    for folder in (directory.cells, *FOLDERS):
        (directory.path / folder).mkdir(exist_ok=True)
    return directory


def preview_study(path: str | Path, study: StudySpec, cells: str | None = None) -> StudyDirectory:
    """Return what `open_study` would, with the same complaints, and write nothing."""
    path, device = Path(path), resolve_device(study.train)
    dataset = open_dataset(study.train.data)
    check_vocab(dataset, study.base.vocab_size)
    for run in {(run.model, study.contrast_of(run.hps)): run for run in expand(study)}.values():
        plan_run(run)
    data_hash = dataset.content_hash
    if (path / "study.json").exists():
        before = read_study(path)
        for section in SHARED:
            theirs, ours = (getattr(each, section).to_tree() for each in (before.study, study))
            for key in ours:
                if key not in NOT_SHARED and ours[key] != theirs.get(key):
                    raise InputError(
                        f"{path}: holds another study ({section}.{key}={theirs.get(key)} there, {ours[key]} here); "
                        "choose another --out"
                    )
        if before.data_hash != data_hash:
            raise InputError(f"{path}: holds this study on other data; choose another --out")
        if before.device != device:
            raise InputError(
                f"{path}: was begun on {before.device} and would go on on {device}; set train.device={before.device}, "
                "or choose another --out"
            )
        if cells not in (None, before.cells):
            raise InputError(f"{path}: has its runs in {before.cells}, not in {cells}; choose another --out")
        cells, study = before.cells, _with_refinements(study, before.study.refinements)
        if gone := len(before.runs.keys() - StudyDirectory(path, study, data_hash, device).runs.keys()):
            warnings.warn(f"{path}: {gone} of its runs do not belong to this study; they stay on disk", stacklevel=2)
    elif path.exists() and any(entry.name not in (OWN_CELLS, *FOLDERS) for entry in path.iterdir()):
        raise InputError(f"{path}: has files and is not a study of expertp; choose another --out")
    return StudyDirectory(path, study, data_hash, device, cells or OWN_CELLS)


def _with_refinements(study: StudySpec, found: tuple[RefinementSpec, ...]) -> StudySpec:
    """Return a study with what an earlier sweep found necessary, on the axes that the study still has."""
    kept = [each for each in found if each.axis in study.axis_names and each not in study.refinements]
    return study.replace(refinements=(*study.refinements, *kept))


def read_study(path: str | Path) -> StudyDirectory:
    """Return the study in a directory."""
    path = Path(path)
    try:
        record = json.loads((path / "study.json").read_text(encoding="utf-8"))
        tree, data_hash, device = record["study"], record["data_hash"], record["device"]
        cells = record.get("cells", OWN_CELLS)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no study here (study.json is missing); `expertp sweep` makes one") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path}/study.json: damaged; remove it and run `expertp sweep` with the study file again"
        ) from None
    return StudyDirectory(path, build(StudySpec, tree, f"{path}/study.json:"), data_hash, device, cells)


def _slug(run: RunSpec) -> str:
    """Return a name that tells people what a run is."""
    model, hps = run.model, run.hps
    size = f"n{model.n_embd}-l{model.n_layer}-e{model.n_exp}a{model.n_act}-x{model.alpha_ffn:g}"
    return f"{hps.rules}-{size}-lr{hps.lr:.3g}-init{hps.init_std:.3g}-seed{run.train.seed}"


def _write_among_others(path: Path, content: bytes) -> None:
    """Write a file that several sweeps of one study may be writing, atomically and each under its own hidden name."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write_durably(temporary, content)
    move_into_place(temporary, path)


def _lives(pid: int) -> bool:
    """Return whether a process of this machine is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
