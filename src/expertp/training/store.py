"""The directory of one run: its files, except for the content of checkpoints. Every write is atomic; no torch.

run.json        the run (specs, identity, hash of the data) and the machine
metrics.jsonl   one record per logged step, append-only; cut back to the checkpoint on resume
summary.json    status, losses, loads, seconds
checkpoints/    see `checkpoints.py`
.lock           locked while the run is trained
saved           exists once a checkpoint has been saved: a run that has lost its checkpoints must not start over

Damage is a file that is missing, or that has another format or another hash than what was written. A file that cannot
be read is an `OSError`. Nothing that could not be read is removed.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expertp.config import OPERATIONAL, first_difference, run_from_dict, run_id
from expertp.errors import DamagedError, InputError
from expertp.spec import RunSpec
from expertp.training.checkpoint_names import STATE, is_name_of_tensors
from expertp.training.records import RunResult, StepMetrics
from expertp.util.files import LOCK_FILE, exclusive, move_into_place, temporary_name, write_atomically, write_durably
from expertp.util.records import Count, parse_record, read_bounded, read_record, write_record

if TYPE_CHECKING:
    from expertp.data import Dataset

FORMAT = 1
# Files that a crash may leave in a directory that has no run.json yet.
MAY_PRECEDE = {
    LOCK_FILE,
    "tokenizer.json",
    *(temporary_name(Path(name)).name for name in ("tokenizer.json", "run.json")),
}
METRICS, LARGEST_METRICS = "metrics.jsonl", 2**30

# Machine of a run: versions, device, threads, processes.
Environment = Mapping[str, str | int]
# What earlier versions did not write because it was always so.
EARLIER: Environment = {"ranks": 1}


@dataclass(frozen=True)
class TokenizerRecord:
    """Identity of the tokenizer of a run's data, as `expertp.data.TokenizerIdentity` has it."""

    name: str
    vocab_size: Count
    eot: Count
    sha256: str | None = None


@dataclass(frozen=True)
class RunRecord:
    """run.json; the tree of the run is checked by `run_from_dict`."""

    identity: str
    data_hash: str
    run: dict[str, Any]
    tokenizer: TokenizerRecord | None
    environment: dict[str, str | int]
    format: Count = FORMAT
    created: str = ""


@dataclass(frozen=True)
class RunDirectory:
    """One run on disk. Make it with `open_run` (to train) or `read_run` (to read).

    Args:
        path: the directory.
        run: the run.
        identity: hash of the run and its data.
        data_hash: hash of the data's content.
        tokenizer: tokenizer of the data; None if the data names none.
        environment: machine on which the run started.
    """

    path: Path
    run: RunSpec
    identity: str
    data_hash: str
    tokenizer: TokenizerRecord | None
    environment: Environment

    @property
    def metrics_path(self) -> Path:
        """Path of metrics.jsonl."""
        return self.path / METRICS

    @property
    def checkpoints_path(self) -> Path:
        """Path of the folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def remedy(self) -> str:
        """What to do if a file of the run is damaged."""
        return f"restore the file, or remove {self.path} to train the run again"

    def checkpoint_folders(self) -> list[Path]:
        """Return the folders of all checkpoints, the newest last; everything with another name is the user's."""
        return self._folders("step-")

    def drop_checkpoints(self) -> None:
        """Remove all checkpoints of a run that has ended; damaged ones that were set aside stay."""
        self._saved_path.unlink(missing_ok=True)
        self.remove_partial()
        for folder in self.checkpoint_folders():
            remove_checkpoint(folder)
        with suppress(OSError):  # missing, or not empty
            self.checkpoints_path.rmdir()

    def remove_partial(self) -> None:
        """Remove what a crash during a save has left."""
        for folder in self._folders(".partial-"):
            shutil.rmtree(folder)

    def note_saved(self) -> None:
        """Record that a checkpoint is in place."""
        if not self._saved_path.exists():
            write_atomically(self._saved_path, b"")

    def start_over(self) -> None:
        """Remove the records of a run that was interrupted before its first checkpoint.

        A run that had a checkpoint is refused: starting over is then the user's decision.
        """
        if self._saved_path.exists() or self.summary() is not None:
            raise DamagedError(
                f"{self.path}: its checkpoints are missing; restore {self.checkpoints_path}, or remove {self.path} to "
                "start over"
            )
        self.cut_metrics(0)

    def append_metrics(self, records: Iterable[StepMetrics]) -> None:
        """Append records to metrics.jsonl and return when they are on disk."""
        write_durably(self.metrics_path, _as_lines(records), mode="ab")

    def cut_metrics(self, size: int) -> None:
        """Cut metrics.jsonl to its first bytes; an empty file is created if there is none."""
        is_regular_file(self.metrics_path, self.remedy)
        with self.metrics_path.open("ab") as file:
            file.truncate(size)

    def metrics(self, size: int | None = None) -> list[StepMetrics]:
        """Return the records in the first bytes of metrics.jsonl, by default in all; empty without a file.

        A last line that a crash cut short is left out.
        """
        if not is_regular_file(self.metrics_path, self.remedy):
            return []
        lines = read_bounded(self.metrics_path, self.remedy, LARGEST_METRICS)[:size].split(b"\n")[:-1]
        return [
            parse_record(line, StepMetrics, f"{self.metrics_path}, line {number}", self.remedy)
            for number, line in enumerate(lines, 1)
        ]

    def write_summary(self, result: RunResult) -> None:
        """Replace summary.json."""
        write_record(self.path / "summary.json", result.to_dict())

    def summary(self) -> RunResult | None:
        """Return summary.json, or None before the run has ended or was stopped."""
        try:
            return read_record(self.path / "summary.json", RunResult, self.remedy)
        except FileNotFoundError:
            return None

    def _folders(self, prefix: str) -> list[Path]:
        """Return the folders of checkpoints that are named by a prefix and a step, in the order of steps."""
        try:
            entries = list(self.checkpoints_path.iterdir())  # unlike glob, it raises an error if it may not read
        except FileNotFoundError:
            return []
        steps = {entry: step_of(entry, prefix) for entry in entries}
        return sorted((entry for entry, step in steps.items() if step >= 0), key=lambda entry: steps[entry])

    @property
    def _saved_path(self) -> Path:
        return self.path / "saved"


def remove_checkpoint(folder: Path) -> None:
    """Remove the program's files of a checkpoint, and its folder; with other files it stays as `left-step-...`."""
    for path in folder.iterdir():
        is_ours = path.name == STATE or is_name_of_tensors(path.name)
        if is_ours and (path.is_symlink() or not path.is_dir()):
            path.unlink()
    if next(folder.iterdir(), None) is None:
        folder.rmdir()
    else:
        move_into_place(folder, free_path(folder.parent, f"left-{folder.name}"))


def free_path(folder: Path, stem: str, ending: str = "") -> Path:
    """Return the first path STEM-1, STEM-2, ... that is not in use."""
    paths = (folder / f"{stem}-{number}{ending}" for number in count(1))
    return next(path for path in paths if not os.path.lexists(path))


def step_of(folder: Path, prefix: str = "step-") -> int:
    """Return the step of a checkpoint's folder; -1 if it is not one that `save` has made.

    >>> step_of(Path("step-00000004.bak"))
    -1
    """
    digits = folder.name.removeprefix(prefix)
    step = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else -1
    is_folder = folder.name == f"{prefix}{step:08d}" and folder.is_dir() and not folder.is_symlink()
    return step if is_folder else -1


@contextmanager
def open_run(path: str | Path, run: RunSpec, dataset: Dataset, environment: Environment) -> Iterator[RunDirectory]:
    """Lock the directory of a run, created if missing; a directory with another run or other files is an error.

    The tokenizer is copied into the directory, so that `generate` does not need the data.
    """
    path = Path(path)
    with exclusive(path, f"{path}: another process is training this run; wait for it or stop it"):
        if not (path / "run.json").exists():
            if has_other_files(path):
                raise InputError(f"{path}: has files but is not a run of expertp; choose another --out")
            _write_run(path, run, dataset, environment)
        directory = read_run(path)
        if directory.identity != run_id(run, dataset.content_hash):
            difference = _difference(directory, run, dataset.content_hash)
            raise InputError(f"{path}: holds another run ({difference}); choose another --out or remove it")
        for name, here in environment.items():
            if (there := directory.environment.get(name, EARLIER.get(name))) != here:
                warnings.warn(
                    f"{path}: started with {name} {there}, now {here}; results may differ in the last bits",
                    stacklevel=3,
                )
        yield directory


def has_other_files(path: Path) -> bool:
    """Return whether there are files in a run's place that do not precede run.json."""
    try:
        return any(entry.name not in MAY_PRECEDE for entry in path.iterdir())
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True


def read_run(path: str | Path) -> RunDirectory:
    """Return the run in a directory."""
    path = Path(path)
    remedy = f"restore the file, or remove {path} to train the run again"
    try:
        record = read_record(path / "run.json", RunRecord, remedy)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no run here (run.json is missing); `expertp train` creates one") from None
    try:
        run = run_from_dict(record.run, f"{path}/run.json")
    except InputError as error:
        raise DamagedError(f"{error}; {remedy}") from None
    return RunDirectory(path, run, record.identity, record.data_hash, record.tokenizer, record.environment)


def is_regular_file(path: Path, remedy: str) -> bool:
    """Return whether a file exists; a folder or a pipe in its place is damage."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(mode):
        raise DamagedError(f"{path}: damaged (not a regular file); {remedy}")
    return True


def write_ended_run(
    path: Path, run: RunSpec, identity: str, data_hash: str, result: RunResult, metrics: Iterable[StepMetrics]
) -> None:
    """Write the records of a run that ended elsewhere; the run cannot be resumed."""
    path.mkdir(parents=True, exist_ok=True)
    _write_record(path, RunRecord(identity, data_hash, run.to_dict(), None, {"imported": True}))
    write_atomically(path / METRICS, _as_lines(metrics))
    write_record(path / "summary.json", result.to_dict())


def _write_run(path: Path, run: RunSpec, dataset: Dataset, environment: Environment) -> None:
    tokenizer = None
    if dataset.tokenizer is not None:
        from expertp.data import save_tokenizer

        save_tokenizer(dataset.tokenizer, dataset.path, path)
        tokenizer = TokenizerRecord(**asdict(dataset.tokenizer))
    identity = run_id(run, dataset.content_hash)
    _write_record(path, RunRecord(identity, dataset.content_hash, run.to_dict(), tokenizer, dict(environment)))


def _write_record(path: Path, record: RunRecord) -> None:
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    write_record(path / "run.json", {**asdict(record), "created": created})


def _as_lines(records: Iterable[StepMetrics]) -> bytes:
    return "".join(f"{record.to_json()}\n" for record in records).encode()


def _difference(there: RunDirectory, run: RunSpec, data_hash: str) -> str:
    """Return in what two runs of different identities differ."""
    others = "other data" if data_hash != there.data_hash else "written by another version"
    return first_difference(there.run, run, OPERATIONAL) or others
