"""Checkpoints of a run: `checkpoints/step-00000100/{weights,optimizer}.safetensors` and `state.json`.

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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from expertp.config import content_hash
from expertp.errors import DamagedError, RunError, one_line
from expertp.training.store import LARGEST_METRICS, RunDirectory, is_regular_file, step_of
from expertp.util.files import file_sha256, move_into_place, sync, write_durably
from expertp.util.machine import is_out_of_memory
from expertp.util.records import Count, read_record

FORMAT = 1
KEPT = 2
# With square experts (alpha_ffn = 1) a transposed layout cannot be detected, so the layout is stored with the weights.
# One entry only: safetensors writes several in any order, and equal checkpoints would have unequal bytes.
WEIGHTS_METADATA = {"layout": "experts.up is [expert, in, hidden], experts.down [expert, hidden, out]"}
WEIGHTS, OPTIMIZER = TENSOR_FILES = ("weights.safetensors", "optimizer.safetensors")
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
class CheckpointState:
    """state.json of a checkpoint: the run and step it belongs to, and the hashes of its files.

    Earlier versions did not write `metrics_sha256`, the hash of the first `metrics_bytes` of metrics.jsonl, and `hash`,
    the hash of all other fields.
    """

    format: Count
    identity: str
    step: Count
    metrics_bytes: Count
    seconds: float
    sha256: dict[str, str]
    metrics_sha256: str | None = None
    hash: str | None = None

    def hashed(self) -> CheckpointState:
        """Return the state with the hash of its other fields."""
        return replace(self, hash=content_hash(asdict(replace(self, hash=None))))


class _MetricsError(DamagedError):
    """metrics.jsonl is not as it was when a checkpoint was saved."""


def save(directory: RunDirectory, checkpoint: Checkpoint) -> None:
    """Write a checkpoint under a temporary name, rename it into place, and keep the newest two."""
    folder = directory.checkpoints_path
    folder.mkdir(exist_ok=True)
    directory.remove_partial()
    partial, place = (folder / f"{prefix}{checkpoint.step:08d}" for prefix in (".partial-", "step-"))
    try:
        _write(directory, partial, checkpoint)
        if os.path.lexists(place):
            _set_aside(place)
        move_into_place(partial, place)
        directory.note_saved()
    except (OSError, SafetensorError) as error:
        directory.remove_partial()
        raise RunError(
            f"the checkpoint at step {checkpoint.step} cannot be written ({error}); free some space and run the "
            "same command again; it continues from the previous checkpoint"
        ) from _as_os_error(error)
    _keep_newest(directory)


def _keep_newest(directory: RunDirectory) -> None:
    for old in directory.checkpoint_folders()[:-KEPT]:
        shutil.rmtree(old)


def resume(directory: RunDirectory) -> Checkpoint | None:
    """Return the newest intact checkpoint, and cut the records that follow it; None if the run starts at step 0.

    Damaged checkpoints are renamed with a warning, and the records that are cut because of them are copied. If all
    checkpoints are damaged or gone, that is an error: starting over is the user's decision.
    """
    folders = directory.checkpoint_folders()
    if not folders:
        directory.start_over()
        return None
    damaged: dict[Path, DamagedError] = {}
    checkpoint = next(_intact(folders, lambda folder: _load(directory, folder), damaged), None)
    if checkpoint is None:
        raise _none_is_intact(directory, damaged)
    if damaged:
        # The records are copied first: after a crash between the two, both are set aside again.
        records = _copy_metrics(directory)
        for folder, error in damaged.items():
            kept = _set_aside(folder)
            warnings.warn(
                f"{folder}: damaged checkpoint ({error}); using the one before; kept as {kept.name} and {records.name}",
                stacklevel=3,
            )
    directory.note_saved()
    directory.cut_metrics(checkpoint.metrics_bytes)
    _keep_newest(directory)  # a crash may have left one more
    return checkpoint


def newest_weights(directory: RunDirectory) -> Mapping[str, Tensor] | None:
    """Return the weights of the newest intact checkpoint, None without checkpoints; changes no file."""
    folders = directory.checkpoint_folders()
    damaged: dict[Path, DamagedError] = {}
    weights = next(_intact(folders, lambda folder: _tensors(folder, _state(directory, folder), WEIGHTS), damaged), None)
    if folders and weights is None:
        raise _none_is_intact(directory, damaged)
    for folder, error in damaged.items():
        warnings.warn(f"{folder}: damaged checkpoint ({error}); using the one before", stacklevel=3)
    return weights


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
    aside = _free(path.parent, f"damaged-{path.name}")
    move_into_place(path, aside)
    return aside


def _copy_metrics(directory: RunDirectory) -> Path:
    """Copy metrics.jsonl before it is cut, and return the path of the copy."""
    copy = _free(directory.path, "metrics.damaged", ".jsonl")
    shutil.copyfile(directory.metrics_path, copy)
    sync(copy)
    return copy


def _free(folder: Path, stem: str, ending: str = "") -> Path:
    """Return the first path STEM-1, STEM-2, ... that is not in use."""
    paths = (folder / f"{stem}-{number}{ending}" for number in count(1))
    return next(path for path in paths if not os.path.lexists(path))


def _write(directory: RunDirectory, folder: Path, checkpoint: Checkpoint) -> None:
    folder.mkdir()
    for name, values in zip(TENSOR_FILES, (checkpoint.weights, checkpoint.optimizer), strict=True):
        save_file(dict(values), folder / name, metadata=WEIGHTS_METADATA)
        # safetensors creates files that only the owner can read
        (folder / name).chmod(folder.stat().st_mode & 0o666)
        sync(folder / name)
    state = CheckpointState(
        format=FORMAT,
        identity=directory.identity,
        step=checkpoint.step,
        metrics_bytes=checkpoint.metrics_bytes,
        seconds=checkpoint.seconds,
        sha256={name: file_sha256(folder / name) for name in TENSOR_FILES},
        metrics_sha256=_prefix_sha256(directory.metrics_path, checkpoint.metrics_bytes),
    )
    write_durably(folder / "state.json", json.dumps(asdict(state.hashed()), indent=2).encode())


def _load(directory: RunDirectory, folder: Path) -> Checkpoint:
    state = _state(directory, folder)
    weights, optimizer = (_tensors(folder, state, name) for name in TENSOR_FILES)
    _check_metrics(directory, state)
    return Checkpoint(state.step, weights, optimizer, state.metrics_bytes, state.seconds)


def _state(directory: RunDirectory, folder: Path) -> CheckpointState:
    if not is_regular_file(folder / "state.json", RESTORE):
        raise DamagedError("state.json is missing")
    state = read_record(folder / "state.json", CheckpointState, RESTORE)
    if (state.format, state.identity, state.step) != (FORMAT, directory.identity, step_of(folder)):
        raise DamagedError("state.json belongs to another run, step or version")
    if state.hash is not None and state != state.hashed():
        raise DamagedError("state.json does not have the hash it was saved with")
    return state


def _tensors(folder: Path, state: CheckpointState, name: str) -> dict[str, Tensor]:
    if not is_regular_file(folder / name, RESTORE):
        raise DamagedError(f"{name} is missing")
    if file_sha256(folder / name) != state.sha256.get(name):
        raise DamagedError(f"{name} does not have the hash it was saved with")
    try:
        return load_file(folder / name)
    except SafetensorError as error:
        raise DamagedError(f"{name}: {error}") from None
    except RuntimeError as error:  # torch opens the file, and has the system's error in its text only
        if is_out_of_memory(error):
            raise
        raise OSError(errno.EIO, one_line(str(error)), str(folder / name)) from None


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
