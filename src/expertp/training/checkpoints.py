"""Checkpoints of a run: `checkpoints/step-00000100/` with tensors (safetensors) and `state.json`.

A run of one process writes weights.safetensors and optimizer.safetensors, a run of several one file of each kind per
rank. A checkpoint that one layout has written is read by any other.

The newest two are kept. A damaged checkpoint is one with a missing file, another hash or another format. It is renamed
to `damaged-step-...` and the one before it is used. It is never removed. A file that cannot be read is no damage: the
`OSError` stops the run, and no file changes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError
from torch import Tensor

from expertp.config import content_hash
from expertp.errors import DamagedError, RunError
from expertp.training.checkpoint_names import STATE, is_name_of_tensors, is_weights
from expertp.training.ranks import ALONE, Ranks
from expertp.training.store import (
    LARGEST_METRICS,
    RunDirectory,
    free_path,
    is_regular_file,
    remove_checkpoint,
    step_of,
)
from expertp.training.tensor_files import LAYOUT, TensorFiles, write_tensors
from expertp.util.files import file_sha256, move_into_place, sync, write_durably
from expertp.util.records import Count, read_record

FORMAT = 1
KEPT = 2
RESTORE = "restore it"

_Loaded = TypeVar("_Loaded")


@dataclass(frozen=True)
class Checkpoint:
    """State from which a run continues as if it had never stopped.

    Args:
        step: optimizer steps done.
        weights: parameters and expert biases, by name.
        optimizer: optimizer state, by `STATE/parameter name`.
        metrics_bytes: length of metrics.jsonl at that step.
        seconds: time spent so far.
    """

    step: int
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    metrics_bytes: int
    seconds: float


@dataclass(frozen=True)
class Saved:
    """A checkpoint on disk that is intact: the fields of `Checkpoint`, with tensors that can be read."""

    step: int
    tensors: TensorFiles
    metrics_bytes: int
    seconds: float


@dataclass(frozen=True)
class CheckpointState:
    """state.json of a checkpoint: the run and step it belongs to, and the hashes of its files.

    Earlier versions did not write `metrics_sha256`, the hash of the first `metrics_bytes` of metrics.jsonl, `hash`, the
    hash of all other fields, and `layout`, the order of the dimensions of experts.
    """

    format: Count
    identity: str
    step: Count
    metrics_bytes: Count
    seconds: float
    sha256: dict[str, str]
    metrics_sha256: str | None = None
    hash: str | None = None
    layout: str | None = None

    def hashed(self) -> CheckpointState:
        """Return the state with the hash of its other fields."""
        fields = {**asdict(self), "hash": None}
        if self.layout is None:  # earlier versions had no such field to hash
            del fields["layout"]
        return replace(self, hash=content_hash(fields))


class _MetricsError(DamagedError):
    """metrics.jsonl is not as it was when a checkpoint was saved."""


def save(directory: RunDirectory, checkpoint: Checkpoint, ranks: Ranks = ALONE) -> None:
    """Write a checkpoint under a temporary name, rename it into place, and keep the newest two.

    All ranks call it together; rank 0 makes and renames the folder.
    """
    folder = directory.checkpoints_path
    partial, place = (folder / f"{prefix}{checkpoint.step:08d}" for prefix in (".partial-", "step-"))

    def begin() -> None:
        folder.mkdir(exist_ok=True)
        directory.remove_partial()
        partial.mkdir()

    def finish() -> None:
        _write_state(directory, partial, checkpoint, sha256)
        if os.path.lexists(place):
            _set_aside(place)
        move_into_place(partial, place)
        directory.note_saved()

    try:
        ranks.first(lambda: _written(checkpoint.step, begin))
        tensors = partial, checkpoint.weights, checkpoint.optimizer
        own = _written(checkpoint.step, lambda: write_tensors(*tensors, ranks))
        hashes = ranks.agreed(lambda: _written(checkpoint.step, lambda: {each.name: file_sha256(each) for each in own}))
        sha256 = {name: value for each in ranks.gathered(hashes) for name, value in each.items()}
        ranks.first(lambda: _written(checkpoint.step, finish))
    except RunError:
        if ranks.is_first:
            directory.remove_partial()
        raise
    ranks.first(lambda: _keep_newest(directory))


def _written(step: int, write: Callable[[], _Loaded]) -> _Loaded:
    """Return what `write` returns; raise `RunError` if it cannot write."""
    try:
        return write()
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"the checkpoint at step {step} cannot be written ({error}); free some space and run the same command "
            "again; it continues from the previous checkpoint"
        ) from _as_os_error(error)


def _keep_newest(directory: RunDirectory) -> None:
    for old in directory.checkpoint_folders()[:-KEPT]:
        remove_checkpoint(old)


def resume(directory: RunDirectory, ranks: Ranks = ALONE) -> Saved | None:
    """Return the newest intact checkpoint, and cut the records that follow it; None if the run starts at step 0.

    Damaged checkpoints are renamed with a warning, and the records that are cut because of them are copied. If all
    checkpoints are damaged or gone, that is an error: starting over is the user's decision. All ranks call it together;
    rank 0 alone changes files.
    """
    folders = ranks.first(directory.checkpoint_folders)
    if not folders:
        ranks.first(directory.start_over)
        return None
    damaged: dict[Path, DamagedError] = {}
    saved = next(_intact(folders, lambda folder: ranks.agreed(lambda: _load(directory, folder, ranks)), damaged), None)
    if saved is None:
        raise _none_is_intact(directory, damaged)
    ranks.first(lambda: _clean_up(directory, saved, damaged))
    return saved


def _clean_up(directory: RunDirectory, saved: Saved, damaged: Mapping[Path, DamagedError]) -> None:
    """Set damaged checkpoints aside, and cut the records that follow the one that is used."""
    if damaged:
        # The records are copied first: after a crash between the two, both are set aside again.
        records = _copy_metrics(directory)
        for folder, error in damaged.items():
            kept = _set_aside(folder)
            warnings.warn(
                f"{folder}: damaged checkpoint ({error}); using the one before; kept as {kept.name} and {records.name}",
                stacklevel=5,
            )
    directory.note_saved()
    directory.cut_metrics(saved.metrics_bytes)
    _keep_newest(directory)  # a crash may have left one more


def newest_weights(directory: RunDirectory) -> Mapping[str, Tensor] | None:
    """Return the weights of the newest intact checkpoint, None without checkpoints; changes no file."""
    folders = directory.checkpoint_folders()
    damaged: dict[Path, DamagedError] = {}
    weights = next(_intact(folders, lambda folder: _weights(directory, folder), damaged), None)
    if folders and weights is None:
        raise _none_is_intact(directory, damaged)
    for folder, error in damaged.items():
        warnings.warn(f"{folder}: damaged checkpoint ({error}); using the one before", stacklevel=3)
    return weights


def _weights(directory: RunDirectory, folder: Path) -> dict[str, Tensor]:
    state = _state(directory, folder)
    return _files(folder, state, [name for name in state.sha256 if is_weights(name)]).whole()


def _intact(
    folders: list[Path], load: Callable[[Path], _Loaded], damaged: dict[Path, DamagedError]
) -> Iterator[_Loaded]:
    """Yield the loaded checkpoints that are intact, the newest first; errors of the others go to `damaged`."""
    for folder in reversed(folders):
        try:
            yield load(folder)
        except DamagedError as error:
            damaged[folder] = error


def _none_is_intact(directory: RunDirectory, damaged: Mapping[Path, DamagedError]) -> DamagedError:
    for folder, error in damaged.items():
        if isinstance(error, _MetricsError):
            return DamagedError(
                f"{directory.metrics_path}: changed after the checkpoint at step {step_of(folder)} was saved; "
                f"{directory.remedy}"
            )
    folder, error = next(iter(damaged.items()))
    return DamagedError(
        f"{directory.path}: all checkpoints are damaged ({folder.name}: {error}); restore one, or remove "
        f"{directory.path} to start over"
    )


def _set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint, or another file in the place of a checkpoint, and return its new path."""
    aside = free_path(path.parent, f"damaged-{path.name}")
    move_into_place(path, aside)
    return aside


def _copy_metrics(directory: RunDirectory) -> Path:
    """Copy metrics.jsonl before it is cut, and return the path of the copy."""
    copy = free_path(directory.path, "metrics.damaged", ".jsonl")
    shutil.copyfile(directory.metrics_path, copy)
    sync(copy)
    return copy


def _write_state(directory: RunDirectory, folder: Path, checkpoint: Checkpoint, sha256: Mapping[str, str]) -> None:
    state = CheckpointState(
        format=FORMAT,
        identity=directory.identity,
        step=checkpoint.step,
        metrics_bytes=checkpoint.metrics_bytes,
        seconds=checkpoint.seconds,
        sha256=dict(sha256),
        metrics_sha256=_prefix_sha256(directory.metrics_path, checkpoint.metrics_bytes),
        layout=LAYOUT,
    )
    write_durably(folder / STATE, json.dumps(asdict(state.hashed()), indent=2).encode())


def _load(directory: RunDirectory, folder: Path, ranks: Ranks) -> Saved:
    """Return a checkpoint if it is intact; every rank checks some of its files, rank 0 the records of the run."""
    state = _state(directory, folder)
    names = sorted(state.sha256)
    _files(folder, state, names[ranks.rank :: ranks.size])
    if ranks.is_first:
        _check_metrics(directory, state)
    files = TensorFiles(tuple(folder / name for name in names))
    return Saved(state.step, files, state.metrics_bytes, state.seconds)


def _state(directory: RunDirectory, folder: Path) -> CheckpointState:
    if not is_regular_file(folder / STATE, RESTORE):
        raise DamagedError("state.json is missing")
    state = read_record(folder / STATE, CheckpointState, RESTORE)
    if (state.format, state.identity, state.step) != (FORMAT, directory.identity, step_of(folder)):
        raise DamagedError("state.json belongs to another run, step or version")
    if state.hash is not None and state != state.hashed():
        raise DamagedError("state.json does not have the hash it was saved with")
    if not any(is_weights(name) for name in state.sha256) or not all(map(is_name_of_tensors, state.sha256)):
        raise DamagedError("state.json does not name the files of a checkpoint")
    return state


def _files(folder: Path, state: CheckpointState, names: Sequence[str]) -> TensorFiles:
    """Return files of tensors if they are those that were saved."""
    for name in names:
        if not is_regular_file(folder / name, RESTORE):
            raise DamagedError(f"{name} is missing")
        if file_sha256(folder / name) != state.sha256[name]:
            raise DamagedError(f"{name} does not have the hash it was saved with")
    return TensorFiles(tuple(folder / name for name in names))


def _check_metrics(directory: RunDirectory, state: CheckpointState) -> None:
    """Raise `_MetricsError` if metrics.jsonl does not begin with the records that the checkpoint was saved after."""
    path = directory.metrics_path
    size = path.stat().st_size if is_regular_file(path, RESTORE) else 0
    if size < state.metrics_bytes:
        raise _MetricsError("metrics.jsonl is shorter than when the checkpoint was saved")
    if state.metrics_sha256 is None:
        try:
            directory.metrics(state.metrics_bytes)
        except DamagedError as error:
            raise _MetricsError(str(error)) from None
    elif state.metrics_sha256 != _prefix_sha256(path, state.metrics_bytes):
        raise _MetricsError("metrics.jsonl was changed after the checkpoint was saved")


def _prefix_sha256(path: Path, size: int) -> str:
    """Return the hash of the first bytes of a file."""
    with path.open("rb") as file:
        return hashlib.sha256(file.read(min(size, LARGEST_METRICS))).hexdigest()


def _as_os_error(error: OSError | SafetensorError) -> OSError:
    """Return the error of the system: safetensors has its number in the text only."""
    if isinstance(error, OSError):
        return error
    code = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(code[1]) if code else errno.EIO, str(error))
