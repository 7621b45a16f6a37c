"""The directory of one run: the only module that knows its file names. Every write is atomic.

run.json        the run (specs, identity, hash of the data) and the machine
metrics.jsonl   one record per logged step, append-only; cut back to the checkpoint on resume
summary.json    status, losses, loads, seconds
checkpoints/    step-00000100/{weights,optimizer}.safetensors + state.json; the newest two are kept
"""

from __future__ import annotations

import json
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from expertp.config import OPERATIONAL, run_from_dict, run_id
from expertp.data import Dataset, TokenizerIdentity, save_tokenizer
from expertp.errors import InputError, RunError
from expertp.spec import RunSpec
from expertp.training.records import RunResult, StepMetrics
from expertp.util.files import (
    exclusive,
    file_sha256,
    move_into_place,
    sync,
    temporary_name,
    write_atomically,
    write_durably,
)

FORMAT = 1
# With square experts (alpha_ffn = 1) a transposed layout cannot be detected, so the layout is stored with the weights.
# One entry only: safetensors writes several in any order, and equal checkpoints would have unequal bytes.
WEIGHTS_METADATA = {"layout": "experts.up is [expert, in, hidden], experts.down [expert, hidden, out]"}
TENSOR_FILES = ("weights.safetensors", "optimizer.safetensors")
# Files that a crash may leave in a directory that has no run.json yet.
MAY_PRECEDE = {"tokenizer.json", *(temporary_name(Path(name)).name for name in ("tokenizer.json", "run.json"))}

# Machine of a run: versions, device, threads.
Environment = Mapping[str, str | int]
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
    """state.json of a checkpoint: the run and step it belongs to, and the hashes of its tensor files."""

    format: int
    identity: str
    step: int
    metrics_bytes: int
    seconds: float
    sha256: dict[str, str]


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
    tokenizer: TokenizerIdentity | None
    environment: Environment

    @property
    def metrics_path(self) -> Path:
        """Path of metrics.jsonl."""
        return self.path / "metrics.jsonl"

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint under a temporary name, rename it into place, and keep the newest two."""
        folder = self.path / "checkpoints"
        folder.mkdir(exist_ok=True)
        _remove_partial(folder)
        partial = folder / f".partial-{checkpoint.step:08d}"
        try:
            self._write_checkpoint(partial, checkpoint)
            move_into_place(partial, folder / f"step-{checkpoint.step:08d}")
        except (OSError, SafetensorError) as error:
            _remove_partial(folder)
            raise RunError(
                f"the checkpoint at step {checkpoint.step} cannot be written ({error}); free some space and run the "
                "same command again; it continues from the previous checkpoint"
            ) from error
        for old in self._checkpoint_folders()[:-2]:
            shutil.rmtree(old)

    def resume(self) -> Checkpoint | None:
        """Return the newest intact checkpoint, and remove later checkpoints and records.

        A damaged checkpoint is skipped with a warning. A run without checkpoints starts over. If all checkpoints are
        damaged, that is an error: starting over is the user's decision.
        """
        folders = self._checkpoint_folders()
        checkpoint = self._newest(self._load_checkpoint)
        if folders and checkpoint is None:
            raise InputError(
                f"{self.path}: all checkpoints are damaged; restore one, or remove the directory to start over"
            )
        for folder in folders:
            if checkpoint and _step_of(folder) > checkpoint.step:
                shutil.rmtree(folder)
        with self.metrics_path.open("ab") as file:
            file.truncate(checkpoint.metrics_bytes if checkpoint else 0)
        return checkpoint

    def newest_weights(self) -> Mapping[str, Tensor] | None:
        """Return the weights of the newest intact checkpoint; nothing is removed."""
        return self._newest(lambda folder: _load_tensors(folder, self._load_state(folder), TENSOR_FILES[0]))

    def drop_checkpoints(self) -> None:
        """Remove all checkpoints of a run that has ended."""
        shutil.rmtree(self.path / "checkpoints", ignore_errors=True)

    def append_metrics(self, records: Iterable[StepMetrics]) -> None:
        """Append records to metrics.jsonl and return when they are on disk."""
        write_durably(self.metrics_path, _as_lines(records), mode="ab")

    def metrics(self) -> list[StepMetrics]:
        """Return the records of metrics.jsonl, without a last line that a crash cut short; empty without a file."""
        content = self.metrics_path.read_bytes() if self.metrics_path.exists() else b""
        return [self._record(number, line) for number, line in enumerate(content.split(b"\n")[:-1], 1)]

    def write_summary(self, result: RunResult) -> None:
        """Replace summary.json."""
        _write_json(self.path / "summary.json", result.to_dict())

    def summary(self) -> RunResult | None:
        """Return summary.json, or None before the run has ended or was stopped."""
        try:
            return RunResult.from_dict(json.loads((self.path / "summary.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except ValueError:
            raise InputError(f"{self.path}/summary.json: damaged; remove it and run the same command again") from None

    def _record(self, number: int, line: bytes) -> StepMetrics:
        try:
            return StepMetrics.from_json(line)
        except ValueError:
            raise InputError(
                f"{self.metrics_path}, line {number}: damaged; restore the file, or remove {self.path} to train again"
            ) from None

    def _checkpoint_folders(self) -> list[Path]:
        return sorted((self.path / "checkpoints").glob("step-*"), key=_step_of)

    def _write_checkpoint(self, folder: Path, checkpoint: Checkpoint) -> None:
        folder.mkdir()
        tensors = dict(zip(TENSOR_FILES, (checkpoint.weights, checkpoint.optimizer), strict=True))
        for name, values in tensors.items():
            save_file(dict(values), folder / name, metadata=WEIGHTS_METADATA)
            (folder / name).chmod(
                folder.stat().st_mode & 0o666
            )  # safetensors creates files that only the owner can read
            sync(folder / name)
        hashes = {name: file_sha256(folder / name) for name in TENSOR_FILES}
        state = CheckpointState(
            FORMAT, self.identity, checkpoint.step, checkpoint.metrics_bytes, checkpoint.seconds, hashes
        )
        write_durably(folder / "state.json", json.dumps(asdict(state), indent=2).encode())

    def _newest(self, load: Callable[[Path], _Loaded]) -> _Loaded | None:
        """Return `load` of the newest checkpoint that it can read."""
        folders = self._checkpoint_folders()
        for place in reversed(range(len(folders))):
            try:
                return load(folders[place])
            except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
                instead = "using the one before" if place else "there is no earlier one"
                warnings.warn(f"{folders[place]}: damaged checkpoint ({error}); {instead}", stacklevel=3)
        return None

    def _load_checkpoint(self, folder: Path) -> Checkpoint:
        state = self._load_state(folder)
        if self.metrics_path.stat().st_size < state.metrics_bytes:
            raise ValueError("metrics.jsonl is shorter than when the checkpoint was saved")
        weights, optimizer = (_load_tensors(folder, state, name) for name in TENSOR_FILES)
        return Checkpoint(state.step, weights, optimizer, state.metrics_bytes, state.seconds)

    def _load_state(self, folder: Path) -> CheckpointState:
        try:
            state = TypeAdapter(CheckpointState).validate_json((folder / "state.json").read_bytes())
        except ValidationError:
            raise ValueError("state.json is damaged") from None
        if (state.format, state.identity, state.step) != (FORMAT, self.identity, _step_of(folder)):
            raise ValueError("state.json belongs to another run, step or version")
        return state


@contextmanager
def open_run(path: str | Path, run: RunSpec, dataset: Dataset, environment: Environment) -> Iterator[RunDirectory]:
    """Lock the directory of a run, created if missing; a directory with another run or other files is an error.

    The tokenizer is copied into the directory, so that `generate` does not need the data.
    """
    path = Path(path)
    with exclusive(path, f"{path}: another process is training this run; wait for it or stop it"):
        if not (path / "run.json").exists():
            if any(entry.name not in MAY_PRECEDE for entry in path.iterdir()):
                raise InputError(f"{path}: has files but is not a run of expertp; choose another --out")
            _write_run(path, run, dataset, environment)
        directory = read_run(path)
        if directory.identity != run_id(run, dataset.content_hash):
            difference = _difference(directory, run, dataset.content_hash)
            raise InputError(f"{path}: holds another run ({difference}); choose another --out or remove it")
        for name, here in environment.items():
            if (there := directory.environment.get(name)) != here:
                warnings.warn(
                    f"{path}: started with {name} {there}, now {here}; results may differ in the last bits",
                    stacklevel=3,
                )
        yield directory


def read_run(path: str | Path) -> RunDirectory:
    """Return the run in a directory."""
    path = Path(path)
    try:
        record = json.loads((path / "run.json").read_text(encoding="utf-8"))
        tokenizer = TokenizerIdentity(**record["tokenizer"]) if record["tokenizer"] else None
        tree, rest = record["run"], (record["identity"], record["data_hash"], tokenizer, dict(record["environment"]))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no run here (run.json is missing); `expertp train` creates one") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}/run.json: damaged; restore it or train again into another directory") from None
    return RunDirectory(path, run_from_dict(tree, f"{path}/run.json"), *rest)


def write_ended_run(
    path: Path, run: RunSpec, identity: str, data_hash: str, result: RunResult, metrics: Iterable[StepMetrics]
) -> None:
    """Write the records of a run that ended elsewhere; the run cannot be resumed."""
    path.mkdir(parents=True, exist_ok=True)
    _write_json(path / "run.json", _as_record(run, identity, data_hash, None, {"imported": True}))
    write_atomically(path / "metrics.jsonl", _as_lines(metrics))
    _write_json(path / "summary.json", result.to_dict())


def _write_run(path: Path, run: RunSpec, dataset: Dataset, environment: Environment) -> None:
    if dataset.tokenizer is not None:
        save_tokenizer(dataset.tokenizer, dataset.path, path)
    data_hash = dataset.content_hash
    record = _as_record(run, run_id(run, data_hash), data_hash, dataset.tokenizer, environment)
    _write_json(path / "run.json", record)


def _load_tensors(folder: Path, state: CheckpointState, name: str) -> dict[str, Tensor]:
    if file_sha256(folder / name) != state.sha256[name]:
        raise ValueError(f"{name} does not have the hash it was saved with")
    return load_file(folder / name)


def _as_lines(records: Iterable[StepMetrics]) -> bytes:
    return "".join(f"{record.to_json()}\n" for record in records).encode()


def _write_json(path: Path, tree: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(tree, indent=2).encode())


def _as_record(
    run: RunSpec,
    identity: str,
    data_hash: str,
    tokenizer: TokenizerIdentity | None,
    environment: Environment,
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "identity": identity,
        "data_hash": data_hash,
        "tokenizer": asdict(tokenizer) if tokenizer else None,
        "run": run.to_dict(),
        "environment": dict(environment),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _difference(there: RunDirectory, run: RunSpec, data_hash: str) -> str:
    """Return the first field in which two runs differ."""
    theirs = there.run.to_dict()
    for section, ours in run.to_dict().items():
        if not isinstance(ours, dict):
            if ours != theirs[section]:
                return f"{section}={theirs[section]} there, {ours} here"
            continue
        for key, value in ours.items():
            if key not in OPERATIONAL.get(section, ()) and value != theirs[section].get(key):
                return f"{section}.{key}={theirs[section].get(key)} there, {value} here"
    return "other data" if data_hash != there.data_hash else "written by another version"


def _remove_partial(folder: Path) -> None:
    for left_over in folder.glob(".partial-*"):
        shutil.rmtree(left_over)


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))
