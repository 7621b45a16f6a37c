"""The directory of a study: the only module that knows its file names.

study.json    the study, the hash of its data, its device and the directory of its runs
runs/NAME/    one directory per run, as `expertp train` leaves it; several studies may share one directory of runs
failures/     IDENTITY.json: the error of a run that failed
workers/      PID.json: the run that a worker is training; NUMBER.log: the worker's output
results.csv   one row per run
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path

from pydantic import TypeAdapter

from expertp.config import OPERATIONAL, run_id
from expertp.data import check_vocab, open_dataset
from expertp.errors import InputError
from expertp.spec import RunSpec
from expertp.study.cells import SIZE_FIELDS, Cell, axis_names, expand, unique_runs
from expertp.study.load import build_study
from expertp.study.spec import RefinementSpec, StudySpec
from expertp.study.table import ENDED, Result, StudyTable
from expertp.training.loop import plan_run, resolve_device, resolved
from expertp.training.records import StepMetrics
from expertp.training.store import RunDirectory, read_run
from expertp.util.files import move_into_place, write_atomically, write_durably

FORMAT = 1
# Sections that all runs of a study share. A study that differs in one of them is another study; axes, grids and seeds
# may grow.
SHARED = ("base", "hps", "train")
NOT_SHARED = {*OPERATIONAL["train"], "seed"}
FOLDERS = ("failures", "workers")
# Directory of the runs, unless studies share one.
OWN_RUNS = "runs"
# Number of failures after which a run is not tried again.
TRIES = 2
# Numbers of a run's summary that a result repeats.
NUMBERS = ("step", "train_loss", "val_loss", "max_load_deviation", "dead_experts", "seconds")
# Columns of results.csv.
SETTINGS = ("log2_lr", "log2_init_std", "seed", "parameters", "active_parameters")
OUTCOMES = ("status", *NUMBERS, "error")
COLUMNS = ("identity", "arm", "rules", *SIZE_FIELDS, *SETTINGS, *OUTCOMES)

Thin = Callable[[Sequence[StepMetrics]], Sequence[StepMetrics]]


@dataclass(frozen=True)
class Failure:
    """failures/IDENTITY.json: the last error of a run, and the number of failures."""

    error: str = ""
    tries: int = 0


@dataclass(frozen=True)
class StudyDirectory:
    """A study on disk. Make it with `open_study` (to train) or `read_study` (to read)."""

    path: Path
    study: StudySpec
    data_hash: str
    device: str
    runs_folder: str = OWN_RUNS  # relative to `path`

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """All cells of the study."""
        return expand(self.study)

    @cached_property
    def runs(self) -> dict[str, RunSpec]:
        """All runs of the study by identity; large models first, so that workers end at about the same time."""
        runs = reversed(unique_runs(self.cells))
        return {run_id(resolved(run, self.device), self.data_hash): run for run in runs}

    def place(self, identity: str) -> Path:
        """Return the path of a run's directory; its name is for people, and no code parses it."""
        return self.path / self.runs_folder / f"{_slug(self.runs[identity])}-{identity[:8]}"

    def directory(self, identity: str) -> RunDirectory | None:
        """Return a run's directory, or None if the run has not started."""
        place = self.place(identity)
        return read_run(place) if (place / "run.json").exists() else None

    def result(self, identity: str) -> Result:
        """Return the result of a run as it is now."""
        run, directory = self.runs[identity], self.directory(identity)
        summary = directory.summary() if directory else None
        if summary is not None and summary.status != "stopped":
            return Result(run, identity, summary.status, **{name: getattr(summary, name) for name in NUMBERS})
        if error := self.failure(identity):
            return Result(run, identity, "failed", error=error)
        return Result(run, identity, "unfinished" if directory else "missing")

    def results(self) -> list[Result]:
        """Return the results of all runs."""
        return [self.result(identity) for identity in self.runs]

    def table(self, thin: Thin = lambda records: records) -> StudyTable:
        """Return all cells with their results as they are now; `thin` selects from the records of each run."""

        @cache
        def read_records(identity: str) -> Sequence[StepMetrics]:
            run = self.directory(identity)
            return thin(run.metrics()) if run else ()

        return StudyTable.join(self.study, self.results(), read_records)

    def note_failure(self, identity: str, error: str) -> None:
        """Record that a run has failed, and why."""
        failure = Failure(error, self._failure(identity).tries + 1)
        write_atomically(self.path / "failures" / f"{identity}.json", json.dumps(asdict(failure)).encode())

    def failure(self, identity: str) -> str:
        """Return the error of a run that has failed too often to be tried again, or an empty string."""
        failure = self._failure(identity)
        return failure.error if failure.tries >= TRIES else ""

    def _failure(self, identity: str) -> Failure:
        try:
            text = (self.path / "failures" / f"{identity}.json").read_bytes()
        except FileNotFoundError:
            return Failure()
        return TypeAdapter(Failure).validate_json(text)

    def forget_failures(self) -> None:
        """Let every failed run be tried again."""
        for path in (self.path / "failures").glob("*.json"):
            path.unlink(missing_ok=True)

    def has_ended(self) -> bool:
        """Return whether nothing is left to train."""
        return all(result.status in ENDED for result in self.results())

    def drop_checkpoints(self, identity: str) -> None:
        """Remove the checkpoints of a run that has ended."""
        if run := self.directory(identity):
            run.drop_checkpoints()

    @contextmanager
    def at_work(self, identity: str) -> Iterator[None]:
        """Record which run this process is training, so that a killed worker's run can be identified."""
        path = self.path / "workers" / f"{os.getpid()}.json"
        write_atomically(path, json.dumps({"identity": identity}).encode())
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def was_at(self, pid: int) -> str | None:
        """Return the run that a process was training when it ended, and remove the record."""
        identity = self._at(pid)
        (self.path / "workers" / f"{pid}.json").unlink(missing_ok=True)
        return identity

    def running(self) -> dict[int, str]:
        """Return the identity of the run that each live worker of this machine is training, by process."""
        pids = [int(path.stem) for path in (self.path / "workers").glob("*.json")]
        at = {pid: self._at(pid) for pid in pids if _lives(pid)}
        return {pid: identity for pid, identity in at.items() if identity in self.runs}

    def _at(self, pid: int) -> str | None:
        try:
            note = (self.path / "workers" / f"{pid}.json").read_text(encoding="utf-8")
        except FileNotFoundError:  # the worker has just finished the run
            return None
        identity: str = json.loads(note)["identity"]
        return identity

    def step_of(self, identity: str) -> int:
        """Return the last step in a run's records; 0 without records."""
        run = self.directory(identity)
        records = run.metrics() if run else []
        return records[-1].step if records else 0

    def changed_at(self) -> int:
        """Return the time in nanoseconds at which the newest of the files that a report reads was written."""
        beside = ("coordcheck*/coordcheck.json", "theory/compare.json")
        found = [path for pattern in ("study.json", "failures/*.json", *beside) for path in self.path.glob(pattern)]
        found += (self.path / self.runs_folder).glob("*/summary.json")
        return max(path.stat().st_mtime_ns for path in found)

    def write_results(self) -> list[Result]:
        """Write results.csv, one row per run in the order of `runs`, and return the results."""
        arms: dict[RunSpec, dict[str, None]] = {}
        for cell in self.cells:
            arms.setdefault(cell.run, {})[cell.arm.name] = None
        text, results = io.StringIO(), self.results()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_row(result, ";".join(arms[result.run])) for result in results)
        _write_among_others(self.path / "results.csv", text.getvalue().encode())
        return results


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


def open_study(path: str | Path, study: StudySpec, runs_folder: str | None = None) -> StudyDirectory:
    """Create the directory of a study, or open one that holds the same study with other sizes, values or seeds.

    Args:
        path: the directory.
        study: the study.
        runs_folder: directory of the runs, relative to `path`; studies with the same directory share the runs that
            they have in common. Default: that of the existing study, or `runs` for a new one.
    """
    directory = preview_study(path, study, runs_folder)
    directory.path.mkdir(parents=True, exist_ok=True)
    record = {
        "format": FORMAT,
        "data_hash": directory.data_hash,
        "device": directory.device,
        "runs": directory.runs_folder,
        "study": directory.study.to_dict(),
    }
    text, place = json.dumps(record, indent=2).encode(), directory.path / "study.json"
    if not place.exists() or place.read_bytes() != text:  # an unchanged file keeps its modification time
        _write_among_others(place, text)
    for folder in (directory.runs_folder, *FOLDERS):
        (directory.path / folder).mkdir(exist_ok=True)
    return directory


def preview_study(path: str | Path, study: StudySpec, runs_folder: str | None = None) -> StudyDirectory:
    """Return what `open_study` returns, with the same errors, but write nothing."""
    path, device = Path(path), resolve_device(study.train)
    dataset = open_dataset(study.train.data)
    check_vocab(dataset, study.base.vocab_size)
    for run in {(cell.size.model, cell.arm): cell.run for cell in expand(study)}.values():
        plan_run(run)
    data_hash = dataset.content_hash
    if (path / "study.json").exists():
        before = read_study(path)
        _check_same_study(before, study, data_hash, device)
        if runs_folder not in (None, before.runs_folder):
            raise InputError(
                f"{path}: keeps its runs in {before.runs_folder}, not in {runs_folder}; choose another --out"
            )
        runs_folder, study = before.runs_folder, _with_refinements(study, before.study.refinements)
        if gone := len(before.runs.keys() - StudyDirectory(path, study, data_hash, device).runs.keys()):
            warnings.warn(f"{path}: {gone} of its runs do not belong to this study; they stay on disk", stacklevel=2)
    elif path.exists() and any(entry.name not in (OWN_RUNS, *FOLDERS) for entry in path.iterdir()):
        raise InputError(f"{path}: has files and is not a study of expertp; choose another --out")
    return StudyDirectory(path, study, data_hash, device, runs_folder or OWN_RUNS)


def _check_same_study(before: StudyDirectory, study: StudySpec, data_hash: str, device: str) -> None:
    """Refuse a study whose runs cannot be those of the study in its directory."""
    for section in SHARED:
        theirs, ours = (getattr(each, section).to_dict() for each in (before.study, study))
        for key in ours:
            if key not in NOT_SHARED and ours[key] != theirs.get(key):
                raise InputError(
                    f"{before.path}: holds another study ({section}.{key}={theirs.get(key)} there, {ours[key]} here); "
                    "choose another --out"
                )
    if before.data_hash != data_hash:
        raise InputError(f"{before.path}: holds this study on other data; choose another --out")
    if before.device != device:
        raise InputError(
            f"{before.path}: the study was started on {before.device} and cannot continue on {device}; "
            f"set train.device={before.device}, or choose another --out"
        )


def _with_refinements(study: StudySpec, found: tuple[RefinementSpec, ...]) -> StudySpec:
    """Return a study with the refinements of an earlier sweep, for axes that the study still has."""
    kept = [each for each in found if each.axis in axis_names(study) and each not in study.refinements]
    return study.replace(refinements=(*study.refinements, *kept))


def read_study(path: str | Path) -> StudyDirectory:
    """Return the study in a directory."""
    path = Path(path)
    try:
        record = json.loads((path / "study.json").read_text(encoding="utf-8"))
        tree, data_hash, device = record["study"], record["data_hash"], record["device"]
        runs_folder = record.get("runs") or record.get("cells", OWN_RUNS)  # earlier versions wrote `cells`
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no study here (study.json is missing); `expertp sweep` makes one") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path}/study.json: damaged; remove it and run `expertp sweep` with the study file again"
        ) from None
    return StudyDirectory(path, build_study(tree, f"{path}/study.json:"), data_hash, device, runs_folder)


def _slug(run: RunSpec) -> str:
    """Return a directory name that describes a run to people."""
    model, hps = run.model, run.hps
    size = f"n{model.n_embd}-l{model.n_layer}-e{model.n_exp}a{model.n_act}-x{model.alpha_ffn:g}"
    return f"{hps.rules}-{size}-lr{hps.lr:.3g}-init{hps.init_std:.3g}-seed{run.train.seed}"


def _write_among_others(path: Path, content: bytes) -> None:
    """Write a file atomically, under a temporary name per process: several sweeps may write it at once."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write_durably(temporary, content)
    move_into_place(temporary, path)


def _lives(pid: int) -> bool:
    """Return whether a process of this machine exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it belongs to another user
        pass
    return True
