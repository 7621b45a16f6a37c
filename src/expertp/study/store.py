"""The directory of a study: the only module that knows its file names. Reading it needs no torch.

study.json    the study, the hash of its data, its device and the directory of its runs
device.json   the device of a study whose workers run on other machines, if train.device is auto
runs/NAME/    one directory per run, as `expertp train` leaves it; several studies may share one directory of runs
runs/.leases/ who is training which run, see `expertp.util.leases`
failures/     IDENTITY.json: the error of a run that failed
stops/        IDENTITY.json: why an adaptive sweep has stopped a run
workers/      HOST-NUMBER.log: the output of a worker of a machine; of a cluster's job, JOB-NUMBER.log
results.csv   one row per run

A damaged file of one run is the status of that run, and files that the program did not write are ignored.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from expertp.config import OPERATIONAL, run_id
from expertp.errors import DamagedError, InputError, shown
from expertp.spec import RunSpec
from expertp.study.cells import Cell, axis_names, expand, unique_runs
from expertp.study.early_stopping import Comparison, zero_shot_runs
from expertp.study.load import build_study
from expertp.study.results import NUMBERS, results_csv
from expertp.study.spec import ChoiceSpec, RefinementSpec, StudySpec
from expertp.study.table import ENDED, Result, StudyTable
from expertp.training.records import StepMetrics
from expertp.training.resolution import resolved
from expertp.training.store import METRICS, RunDirectory, has_other_files, read_run
from expertp.util.files import create_once, remove_leftovers, write_among_others
from expertp.util.leases import Holder, Lease, Leases
from expertp.util.machine import host
from expertp.util.records import Count, loops_are_damage, read_record, write_record

FORMAT = 1
# Sections that all runs of a study share. A study that differs in one of them is another study; axes, grids and seeds
# may grow.
SHARED = ("base", "hps", "train")
NOT_SHARED = {*OPERATIONAL["train"], "seed"}
FOLDERS = ("failures", "stops", "workers")
# Directory of the runs, unless studies share one: a name, or a name beside the study or beside its parent.
OWN_RUNS = "runs"
RUNS_FOLDER = re.compile(r"(\.\./){0,2}[A-Za-z0-9_][A-Za-z0-9_.-]*")
# The device of a study before its workers, on other machines, have found it, and the file that then has it.
AUTO, DEVICE = "auto", "device.json"
# Folder of the leases in the directory of the runs; the runs themselves have other names.
LEASES = ".leases"
# Number of failures after which a run is not tried again.
TRIES = 2

Thin = Callable[[Sequence[StepMetrics]], Sequence[StepMetrics]]


@dataclass(frozen=True)
class Failure:
    """failures/IDENTITY.json: the last error of a run, and the number of failures."""

    error: str = ""
    tries: Count = 0


@dataclass(frozen=True)
class StudyRecord:
    """study.json; the tree of the study is checked by `build_study`. Earlier versions wrote `cells` for `runs`."""

    study: dict[str, Any]
    data_hash: str
    device: Literal["cpu", "cuda", "auto"]
    runs: str | None = None
    cells: str | None = None
    format: Count = FORMAT


@dataclass(frozen=True)
class DeviceRecord:
    """device.json, written once."""

    device: Literal["cpu", "cuda"]


@dataclass(frozen=True)
class StudyDirectory:
    """A study on disk. Make it with `open_study` (to train) or `read_study` (to read).

    Its device is `auto` until the first worker on another machine has found out; runs then have the identity that they
    would have on a CPU, and no directory.
    """

    path: Path
    study: StudySpec
    data_hash: str
    device: str
    runs_folder: str = OWN_RUNS  # relative to `path`

    def settled(self) -> StudyDirectory:
        """Return this study with its device, if a worker has found it by now."""
        return self if self.device != AUTO else replace(self, device=_found_device(self.path))

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """All cells of the study."""
        return expand(self.study)

    @cached_property
    def runs(self) -> dict[str, RunSpec]:
        """All runs of the study by identity; large models first, so that workers end at about the same time."""
        runs = reversed(unique_runs(self.cells))
        return {run_id(resolved(run, self.device), self.data_hash): run for run in runs}

    @cached_property
    def cells_of(self) -> dict[str, tuple[Cell, ...]]:
        """The cells that need each run, by identity."""
        found: dict[RunSpec, list[Cell]] = {}
        for cell in self.cells:
            found.setdefault(cell.run, []).append(cell)
        return {identity: tuple(found[run]) for identity, run in self.runs.items()}

    @cached_property
    def zero_shot_of(self) -> dict[str, str]:
        """The zero-shot run that each run is compared with, by identity, for runs that may be stopped early."""
        identities = {run: identity for identity, run in self.runs.items()}
        found = zero_shot_runs(self.study, self.cells)
        return {identities[run]: identities[zero_shot] for run, zero_shot in found.items()}

    @cached_property
    def deciding(self) -> frozenset[str]:
        """The runs on axes that have a verdict, by identity; on other axes, larger sizes are zero-shot only."""
        judged = {cell.axis for cell in self.cells if cell.hp is not None and not cell.size.is_base}
        runs = {cell.run for cell in self.cells if cell.axis in judged}
        return frozenset(identity for identity, run in self.runs.items() if run in runs)

    @cached_property
    def training_order(self) -> tuple[str, ...]:
        """All runs in the order in which workers take them.

        Runs on axes with a verdict come first, so that a sweep that runs out of time has the verdicts. Zero-shot runs
        come before those that are compared with them.
        """
        return tuple(sorted(self.runs, key=lambda each: (each not in self.deciding, each in self.zero_shot_of)))

    def place(self, identity: str) -> Path:
        """Return the path of a run's directory; its name is for people, and no code parses it."""
        return self.path / self.runs_folder / f"{_slug(self.runs[identity])}-{identity[:8]}"

    def metrics_path(self, identity: str) -> Path:
        """Return the path of a run's records, which exist once the run has started."""
        return self.place(identity) / METRICS

    def directory(self, identity: str) -> RunDirectory | None:
        """Return a run's directory, or None if the run has not started."""
        place = self.place(identity)
        remedy = f"restore it, or remove {place} to train the run again"
        with loops_are_damage(place, remedy):
            has_others = has_other_files(place)  # asked first: a worker may write run.json meanwhile
        if not (place / "run.json").exists():
            if has_others:
                raise DamagedError(f"{place}/run.json: missing, but the place has files; {remedy}")
            return None
        directory = read_run(place)
        if directory.identity != identity:
            raise DamagedError(f"{place}/run.json: damaged (it belongs to another run); {remedy}")
        return directory

    def result(self, identity: str) -> Result:
        """Return the result of a run as it is now; its status is `damaged` if a file of the run is."""
        run = self.runs[identity]
        try:
            directory = self.directory(identity)
            summary = directory.summary() if directory else None
            if summary is not None and summary.has_ended:
                return Result(run, identity, summary.status, **{name: getattr(summary, name) for name in NUMBERS})
            if error := self.failure(identity):
                return Result(run, identity, "failed", error=error)
            stop = self.stop(identity)
            if stop is not None and summary is not None and summary.step >= stop.step:
                return Result(run, identity, "stopped", stop.step, stop.train_loss, seconds=summary.seconds)
        except DamagedError as error:
            return Result(run, identity, "damaged", error=str(error))
        return Result(run, identity, "unfinished" if directory else "missing")

    def results(self) -> list[Result]:
        """Return the results of all runs."""
        return [self.result(identity) for identity in self.runs]

    def table(self, thin: Thin = lambda records: records) -> StudyTable:
        """Return all cells with their results as they are now; `thin` selects from the records of each run.

        Damaged records are left out with a warning.
        """

        return StudyTable.join(self.study, self.results(), cache(lambda identity: thin(self.records(identity))))

    def records(self, identity: str) -> Sequence[StepMetrics]:
        """Return the training records of a run; none, with a warning, if they are damaged."""
        try:
            run = self.directory(identity)
            return run.metrics() if run else ()
        except DamagedError as error:
            warnings.warn(str(error), stacklevel=2)
            return ()

    def note_failure(self, identity: str, error: str) -> None:
        """Record that a run has failed, and why."""
        failure = Failure(error, self._failure(identity).tries + 1)
        write_record(self._failure_path(identity), asdict(failure))

    def failure(self, identity: str) -> str:
        """Return the error of a run that has failed too often to be tried again, or an empty string."""
        failure = self._failure(identity)
        return failure.error if failure.tries >= TRIES else ""

    def _failure(self, identity: str) -> Failure:
        path = self._failure_path(identity)
        try:
            return read_record(path, Failure, f"remove {path} to let the run be tried again")
        except FileNotFoundError:
            return Failure()

    def _failure_path(self, identity: str) -> Path:
        return self.path / "failures" / f"{identity}.json"

    def forget_failures(self) -> None:
        """Let every failed run be tried again; a damaged record stays."""
        for identity in self.runs:
            with suppress(DamagedError):
                self._failure(identity)
                self._failure_path(identity).unlink(missing_ok=True)

    def note_stop(self, identity: str, stop: Comparison) -> None:
        """Record that a run was stopped early, and why."""
        write_record(self._stop_path(identity), asdict(stop))

    def stop(self, identity: str) -> Comparison | None:
        """Return why an adaptive sweep has stopped a run; None if it has not. A sweep of all cells ignores it."""
        if self.study.chosen is None:
            return None
        path = self._stop_path(identity)
        try:
            return read_record(path, Comparison, f"remove {path} to let the run continue")
        except FileNotFoundError:
            return None

    def _stop_path(self, identity: str) -> Path:
        return self.path / "stops" / f"{identity}.json"

    def has_ended(self) -> bool:
        """Return whether nothing is left to train."""
        return all(result.status in ENDED for result in self.results())

    def tidy(self, identity: str) -> None:
        """Remove what a run that has ended needs no more: its lease, and its checkpoints unless they are kept."""
        self.leases.forget(identity)
        if not self.study.keep_checkpoints:
            self.drop_checkpoints(identity)

    def drop_checkpoints(self, identity: str) -> None:
        """Remove the checkpoints of a run that has ended."""
        if run := self.directory(identity):
            run.drop_checkpoints()

    @cached_property
    def leases(self) -> Leases:
        """Who is training which run; beside the runs, because studies may share them."""
        return Leases(self.path / self.runs_folder / LEASES)

    @contextmanager
    def at_work(self, identity: str) -> Iterator[Lease]:
        """Hold the lease of a run while this process trains it; `BusyError` if another process does."""
        with self.leases.hold(identity, f"{self.place(identity)}: another worker is training this run") as lease:
            yield lease

    def was_at(self, pid: int) -> str | None:
        """Return the run that a process of this machine was training when it ended; None if there was none."""
        return next((identity for identity in self.leases.held_by(pid) if identity in self.runs), None)

    def running(self) -> dict[str, Holder]:
        """Return the live workers by the identity of the run that they are training; those of other machines too."""
        holders = {identity: self.leases.holder(identity) for identity in self.leases.names() if identity in self.runs}
        return {identity: holder for identity, holder in holders.items() if holder is not None}

    def forget_leftovers(self) -> None:
        """Remove temporary files that sweeps of this machine left when they were killed."""
        remove_leftovers(self.path)

    def write_results(self) -> list[Result]:
        """Write results.csv, one row per run in the order of `runs`, and return the results."""
        results = self.results()
        write_among_others(self.path / "results.csv", results_csv(self.cells, results).encode())
        return results


def open_study(
    path: str | Path, study: StudySpec, runs_folder: str | None = None, trains_here: bool = True
) -> StudyDirectory:
    """Create the directory of a study, or open one that holds the same study with other sizes, values or seeds.

    Args:
        path: the directory.
        study: the study.
        runs_folder: directory of the runs, relative to `path`; studies with the same directory share the runs that
            they have in common. Default: that of the existing study, or `runs` for a new one.
        trains_here: whether workers run on this machine; otherwise its devices do not matter.
    """
    directory = preview_study(path, study, runs_folder, trains_here)
    for folder in (directory.runs_folder, *FOLDERS):
        (directory.path / folder).mkdir(parents=True, exist_ok=True)
    record = {
        "format": FORMAT,
        "data_hash": directory.data_hash,
        "device": directory.device,
        "runs": directory.runs_folder,
        "study": directory.study.to_dict(),
    }
    text, place = json.dumps(record, indent=2).encode(), directory.path / "study.json"
    if not place.exists() or place.read_bytes() != text:
        write_among_others(place, text)
    return directory


def preview_study(
    path: str | Path, study: StudySpec, runs_folder: str | None = None, trains_here: bool = True
) -> StudyDirectory:
    """Return what `open_study` returns, with the same errors, but write nothing."""
    from expertp.data import check_vocab, open_dataset
    from expertp.training.build import check_model
    from expertp.training.loop import resolve_device
    from expertp.training.parallel import check_layout
    from expertp.training.ranks import Ranks

    path, device = Path(path), resolve_device(study.train) if trains_here else study.train.device
    dataset = open_dataset(study.train.data)
    check_vocab(dataset, study.base.vocab_size)
    for run in {(cell.size.model, cell.arm): cell.run for cell in expand(study)}.values():
        check_model(run, device)
        check_layout(run, Ranks(size=study.processes))
    data_hash = dataset.content_hash
    if has_study(path):
        before = read_study(path)
        device = before.device if device == AUTO else device
        _check_same_study(before, study, data_hash, device)
        if runs_folder not in (None, before.runs_folder):
            raise InputError(
                f"{path}: keeps its runs in {before.runs_folder}, not in {runs_folder}; choose another --out"
            )
        runs_folder, study = before.runs_folder, _with_refinements(study, before.study.refinements)
        if study.chosen is None and before.study.chosen is not None:
            study = _with_refinements(study, _looks_so_far(before.study.chosen))
        gone = len(before.runs.keys() - StudyDirectory(path, study, data_hash, device).runs.keys())
        if gone and before.study.chosen is None and study.chosen is None:  # an adaptive sweep trains a choice of runs
            warnings.warn(f"{path}: {gone} of its runs do not belong to this study; they stay on disk", stacklevel=2)
    elif path.exists() and any(path.iterdir()) and not any((path / name).is_dir() for name in (OWN_RUNS, *FOLDERS)):
        raise InputError(f"{path}: has files and is not a study of expertp; choose another --out")
    directory = StudyDirectory(path, study, data_hash, device, _checked_folder(runs_folder or OWN_RUNS, path))
    _check_kinds(directory)
    return directory


def _check_kinds(directory: StudyDirectory) -> None:
    """Refuse a directory that has something else where a sweep writes: it would find out after training."""
    path, leases = directory.path, directory.leases.folder
    for folder in (*(path / name for name in FOLDERS), leases, *(leases / identity for identity in directory.runs)):
        if os.path.lexists(folder) and not folder.is_dir():
            raise InputError(f"{folder}: is not a directory; move it away and run the same command again")
    for file in (path / "results.csv", *sorted((path / "workers").glob("*.log"))):
        if os.path.lexists(file) and not file.is_file():
            raise InputError(f"{file}: is not a file; move it away and run the same command again")


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
    if before.device not in (device, AUTO):
        raise InputError(
            f"{before.path}: the study was started on {before.device} and cannot continue on {device}; "
            f"set train.device={before.device}, or choose another --out"
        )


def _with_refinements(study: StudySpec, found: tuple[RefinementSpec, ...]) -> StudySpec:
    """Return a study with the refinements of an earlier sweep, for axes that the study still has."""
    kept = [each for each in found if each.axis in axis_names(study) and each not in study.refinements]
    return study.replace(refinements=(*study.refinements, *kept))


def _looks_so_far(chosen: Iterable[ChoiceSpec]) -> tuple[RefinementSpec, ...]:
    """Return the number of looks of an adaptive sweep, and one more at all cells, which are trained next."""
    why = "an adaptive sweep has looked at it before all cells were trained"
    return tuple(RefinementSpec(axis=each.axis, hp=each.hp, looks=each.looks + 1, why=why) for each in chosen)


def read_study(path: str | Path) -> StudyDirectory:
    """Return the study in a directory."""
    path = Path(path)
    remedy = "restore it, or remove it and run `expertp sweep` with the study file again"
    try:
        record = read_record(path / "study.json", StudyRecord, remedy)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no study here (study.json is missing); `expertp sweep` makes one") from None
    runs_folder = _checked_folder(record.runs or record.cells or OWN_RUNS, path)
    study = build_study(record.study, f"{path}/study.json:")
    device = record.device if record.device != AUTO else _found_device(path)
    return StudyDirectory(path, study, record.data_hash, device, runs_folder)


def _found_device(path: Path) -> str:
    """Return the device that the first worker of a study has found; `auto` before."""
    try:
        return read_record(path / DEVICE, DeviceRecord, "remove it if no run has begun").device
    except FileNotFoundError:
        return AUTO


def settle_device(directory: StudyDirectory) -> StudyDirectory:
    """Return a study that this machine can train; the first worker decides what `train.device: auto` stands for."""
    from expertp.training.loop import resolve_device

    here = resolve_device(directory.study.train)
    if directory.device == AUTO:
        with suppress(FileExistsError):
            create_once(directory.path / DEVICE, json.dumps({"device": here}).encode())
        directory = read_study(directory.path)
    if directory.device != here:
        raise InputError(
            f"{directory.path}: the study was started on {directory.device}, but {host()} would train on {here}; ask "
            f"for machines with {directory.device}"
        )
    return directory


def has_study(path: str | Path) -> bool:
    """Return whether a directory holds a study."""
    return (Path(path) / "study.json").exists()


def stored_choice(path: str | Path) -> tuple[ChoiceSpec, ...] | None:
    """Return the cells that an adaptive sweep in a directory has chosen; None where there is no such sweep."""
    return read_study(path).study.chosen if has_study(path) else None


def _checked_folder(runs_folder: str, path: Path) -> str:
    """Return the directory of a study's runs if it is one that the program writes."""
    if not RUNS_FOLDER.fullmatch(runs_folder):
        raise InputError(
            f"{path}/study.json: runs: {shown(runs_folder)} is not a place for runs; give a name such as {OWN_RUNS}, "
            f"or ../../{OWN_RUNS} for a directory that studies share"
        )
    return runs_folder


def _slug(run: RunSpec) -> str:
    """Return a directory name that describes a run to people."""
    model, hps = run.model, run.hps
    size = f"n{model.n_embd}-l{model.n_layer}-e{model.n_exp}a{model.n_act}-x{model.alpha_ffn:g}"
    return f"{hps.rules}-{size}-lr{hps.lr:.3g}-init{hps.init_std:.3g}-seed{run.train.seed}"
